"""The code in the guides runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.datasets import files

GUIDES = Path(__file__).parent.parent / "docs"


def test_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUBER_CACHE", str(tmp_path / "cache"))
    for folder in ("flowers", "drawings"):
        for seed, letter in enumerate("abcd"):
            for number, image in enumerate(files.pictures(15, 40, 50, 3, seed=seed)):
                files.write_image(tmp_path / folder / letter / f"{number}.png", image)
    for part, numbers in (("train", range(10)), ("test", range(10, 15))):
        rows = [(f"{letter}/{number}.png", letter) for letter in "ab" for number in numbers]
        files.write_csv(tmp_path / f"first-{part}.csv", rows)
    text = (GUIDES / "own-data.md").read_text()
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), {})
    out = capsys.readouterr().out
    assert re.search(r"print\(flowers\) +# (.*)", text).group(1) in out
    assert "Result(cuber on flowers, 2 tasks" in out
