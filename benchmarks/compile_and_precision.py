"""What --compile and --precision bf16 gain, and what they do to the accuracy.

    CUBER_DATA=... .venv/bin/python benchmarks/compile_and_precision.py permuted-mnist [--variants bf16] [--rounds 5]

The same short run with each of them in turn, round after round, with one thread. An epoch is one of the last task, but
not its first, in which torch compiles; its seconds are those of the processor, since what else the machine does matters
less to them. Seconds of compiling are those on the clock: the first round's, then the median. Each round has a seed of
its own, which the variants share.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from statistics import mean, median
from typing import Any

from cuber.experiments import Experiment, run
from cuber.training import ProgressEvent, Result

VARIANTS: dict[str, dict[str, Any]] = {
    "compile": {"compile": True},
    "bf16": {"precision": "bf16"},
}


class Timed:
    """An experiment that has been run, and what it took."""

    def __init__(self, experiment: Experiment) -> None:
        self._ends: dict[tuple[int, float], float] = {}
        self.result: Result = run(experiment, progress=self._note)
        ends = [self._ends[experiment.tasks - 1, epoch + 1] for epoch in range(experiment.epochs)]
        self.epoch = median(end - begin for begin, end in pairwise(ends))
        """Seconds of the processor."""
        first = [(epochs[0].seconds, median(epoch.seconds for epoch in epochs[1:])) for epochs in self.result.history]
        self.compiling = sum(seconds - usual for seconds, usual in first)
        """Seconds on the clock that the first epochs took beyond the others of their task."""

    def _note(self, moment: ProgressEvent) -> None:
        if not moment.finished:
            self._ends[moment.task, moment.epoch] = time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("--methods", default="finetune,gpm,cuber")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--train-per-task", type=int, default=2000)
    parser.add_argument("--test-per-task", type=int)
    options = parser.parse_args()
    variants = {"plain": {}, **{name: VARIANTS[name] for name in options.variants.split(",")}}
    for method in options.methods.split(","):
        runs: dict[str, list[Timed]] = {name: [] for name in variants}
        for seed in range(options.rounds):
            for name, how in variants.items():
                experiment = Experiment(
                    options.benchmark,
                    method,
                    seed,
                    tasks=options.tasks,
                    epochs=options.epochs,
                    train_per_task=options.train_per_task,
                    test_per_task=options.test_per_task,
                    patience=0,
                    threads=1,
                    **how,
                )
                runs[name].append(Timed(experiment))
        for name, made in runs.items():
            pairs = list(zip(made, runs["plain"], strict=True))
            ratios = sorted(one.epoch / plain.epoch for one, plain in pairs)
            gains = [one.result.acc - plain.result.acc for one, plain in pairs]
            print(
                f"{options.benchmark} {method:9} {name:8} epoch {median(one.epoch for one in made):6.3f} s,"
                f" x {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f});"
                f" compiling {made[0].compiling:5.1f} s, then {median(one.compiling for one in made):5.1f} s;"
                f" ACC {mean(one.result.acc for one in made):.2f},"
                f" {mean(gains):+.2f} ({min(gains):+.2f} to {max(gains):+.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
