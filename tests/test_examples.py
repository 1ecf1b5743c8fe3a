"""Every script in ``examples/`` runs to its end and prints something."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDED = {"transformers_text": "transformers", "lightning_images": "lightning"}
"""Example -> the optional package that it needs."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    needed = NEEDED.get(path.stem)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    searched = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, searched)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
