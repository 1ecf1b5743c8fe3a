"""What --compile and --precision bf16 gain, and what they do to the accuracy.

    CUBER_DATA=... .venv/bin/python benchmarks/compile_and_precision.py permuted-mnist [--variants bf16] [--rounds 5]

The same short run with each of them in turn, round after round, so that whatever else the machine does meets all alike;
one thread. Seconds are those of an epoch of the second task, without the first one, in which torch compiles. Each round
has a seed of its own, which the variants share.
"""

from __future__ import annotations

import argparse
from statistics import mean, median
from typing import Any

from cuber.experiments import Experiment, run
from cuber.training import Result

VARIANTS: dict[str, dict[str, Any]] = {
    "compile": {"compile": True},
    "bf16": {"precision": "bf16"},
}


def steady(result: Result) -> float:
    """Seconds of an epoch in which nothing was compiled."""
    return median(epoch.seconds for epoch in result.history[-1][1:])


def compiling(result: Result) -> float:
    """Seconds that the first epochs took beyond the others of their task."""
    return sum(epochs[0].seconds - median(epoch.seconds for epoch in epochs[1:]) for epochs in result.history)


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
        results: dict[str, list[Result]] = {name: [] for name in variants}
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
                results[name].append(run(experiment))
        plain = results["plain"]
        for name, made in results.items():
            pairs = list(zip(made, plain, strict=True))
            ratios = sorted(steady(one) / steady(other) for one, other in pairs)
            gains = [one.acc - other.acc for one, other in pairs]
            print(
                f"{options.benchmark} {method:9} {name:8} epoch {median(map(steady, made)):6.3f} s,"
                f" x {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f});"
                f" compiling {compiling(made[0]):5.1f} s, then {median(map(compiling, made)):5.1f} s;"
                f" ACC {mean(one.acc for one in made):.2f},"
                f" {mean(gains):+.2f} ({min(gains):+.2f} to {max(gains):+.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
