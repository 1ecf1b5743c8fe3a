"""What keeping a run costs: the share of its time that goes into logs and checkpoints.

    CUBER_DATA=... .venv/bin/python benchmarks/keeping.py [permuted-mnist] [--tasks 2] [--epochs 2] [--method cuber]

The time inside everything that a run without a directory does not do, divided by the time of the whole run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from cuber.experiments import Experiment, run
from cuber.runs.directory import RunDirectory
from cuber.training.trainer import Trainer


class Stopwatch:
    """The seconds spent in a method, calls of it inside another of ours not counted twice."""

    def __init__(self) -> None:
        self.seconds, self.calls, self._inside = 0.0, 0, False

    def around(self, owner: type, name: str) -> None:
        method = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return method(*arguments, **options)
            self._inside, began = True, time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                self.seconds, self.calls, self._inside = (
                    self.seconds + time.perf_counter() - began,
                    self.calls + 1,
                    False,
                )

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", nargs="?", default="permuted-mnist")
    parser.add_argument("--method", default="cuber")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    all_of_it, saving = Stopwatch(), Stopwatch()
    for owner, name in ((Trainer, "_pause"), (Trainer, "_save"), (RunDirectory, "open"), (RunDirectory, "finish")):
        all_of_it.around(owner, name)
    saving.around(RunDirectory, "save")
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        run(
            Experiment(options.benchmark, options.method, tasks=options.tasks, epochs=options.epochs),
            Path(directory) / "run",
        )
        seconds = time.perf_counter() - began
    print(f"{options.benchmark}, {options.method}, {options.tasks} tasks, {options.epochs} epochs: {seconds:.1f} s")
    print(f"logs and checkpoints: {all_of_it.seconds:.3f} s, {all_of_it.seconds / seconds:.2%} (wanted: below 2 %)")
    print(f"of it {saving.calls} checkpoints, {1000 * saving.seconds / saving.calls:.0f} ms each")


if __name__ == "__main__":
    main()
