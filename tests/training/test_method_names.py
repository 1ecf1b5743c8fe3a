"""A method has one name in the library and on the command line; files with an earlier name are read."""

from __future__ import annotations

from pathlib import Path

import pytest

import cuber
from cuber.errors import CuberError
from cuber.methods import METHODS, method_name
from cuber.report.grouping import load_report
from cuber.training import TheoryRecorder
from tests.training import small


def learn(directory: Path, seed: int = 0) -> cuber.Result:
    options = {"epochs": 1, "lr": 0.1, "batch_size": 8, "seed": seed}
    return cuber.learn(cuber.SoftCUBER(small.model(2)), small.stream(2), **options, directory=directory)


def with_the_earlier_name(directory: Path) -> None:
    """Change the files of a run into those that version 0.2 wrote before this name was settled."""
    for name in ("result.json", "config.toml"):
        text = (directory / name).read_text()
        assert '"soft-cuber"' in text
        (directory / name).write_text(text.replace('"soft-cuber"', '"softcuber"'))


def test_learn_uses_the_name_of_the_command_line(tmp_path: Path) -> None:
    assert learn(tmp_path).method == "soft-cuber"
    assert {method_name(method): method for method in METHODS.values()} == METHODS
    with pytest.raises(CuberError, match="which soft-cuber does not keep"):
        TheoryRecorder(cuber.SoftCUBER(small.model(2)))


def test_earlier_names_are_read_grouped_and_continued(tmp_path: Path) -> None:
    old = learn(tmp_path / "0")
    learn(tmp_path / "1", seed=1)
    with_the_earlier_name(tmp_path / "0")
    (group,) = load_report([tmp_path]).only(["soft-cuber"]).groups
    (variant,) = group.variants
    assert (variant.label, variant.seeds) == ("soft-cuber", [0, 1])

    assert learn(tmp_path / "0") == old
    (tmp_path / "0" / "result.json").unlink()
    assert learn(tmp_path / "0").accuracy == old.accuracy  # from its checkpoint, or anew
