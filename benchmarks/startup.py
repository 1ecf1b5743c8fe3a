"""How long it takes until anything happens."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.timing import Figure, seconds


def measure(quick: bool) -> list[Figure]:
    turns = 3 if quick else 9
    help_takes = _median("from cuber.cli.main import main; main()", "--help", turns=turns)
    added = _median("import torch, cuber", turns=turns) - _median("import torch", turns=turns)
    return [
        Figure("cuber --help", help_takes, "s", at_most=0.4),
        Figure("import cuber, beyond import torch", added, "s", at_most=0.3),
    ]


def _median(code: str, *arguments: str, turns: int) -> float:
    command = [sys.executable, "-c", code, *arguments]

    def run() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    run()
    return statistics.median(seconds(run) for _ in range(turns))
