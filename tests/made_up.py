"""Made-up results and run directories, with numbers that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cuber.training import Result

MATRIX = [[90.0, None, None], [91.0, 80.0, None], [92.0, 78.0, 70.0]]
"""ACC 80, BWT (2 - 2) / 2 = 0, mean diagonal 80."""


def shifted(acc: float = 0.0, bwt: float = 0.0) -> list[list[float | None]]:
    """The matrix with ACC and BWT moved by so much: the last row, and then the rest against it."""
    matrix: list[list[float | None]] = [list(row) for row in MATRIX]
    for i, row in enumerate(matrix):
        matrix[i] = [None if value is None else value + acc - (bwt if i < 2 else 0.0) for value in row]
    return matrix


def result(method: str = "cuber", seed: int = 0, *, benchmark: str = "made-up", **changes: Any) -> Result:
    """Three tasks of ten seconds each, 1 MB of memory."""
    values: dict[str, Any] = {
        "tasks": [{"name": f"part {n}", "classes": 2, "train": 20, "test": 10} for n in range(3)],
        "settings": {"eps2": 0.0, "threshold": 0.97} if method == "cuber" else {},
        "training": {"epochs": 5, "lr": 0.01, "batch_size": 10},
        "accuracy": MATRIX,
        "history": [[], [], []],
        "seconds": [10.0, 10.0, 10.0],
        "bytes": [{"bases": 1_000_000, "heads": 0}],
        "machine": {"system": "Linux", "processor": "x86_64", "device": "cpu", "threads": 1},
    }
    return Result(benchmark, method, seed, **(values | changes))


def write(directory: Path, made: Result | None = None, config: str | None = None, **files: str) -> Path:
    """A run directory with a result, a configuration, and whatever else: ``log_jsonl="..."`` is log.jsonl."""
    directory.mkdir(parents=True, exist_ok=True)
    if made is not None:
        (directory / "result.json").write_text(json.dumps(made.to_dict()))
    if config is not None:
        (directory / "config.toml").write_text(config)
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text)
    return directory
