"""When does a new task improve old ones? The study behind docs/backward-transfer.md and CUBER's defaults.

    python -m benchmarks.backward_transfer overlap-digits --part validation --seeds 100-119    to choose settings by
    python -m benchmarks.backward_transfer overlap-digits --part test --seeds 0-19             to report what was chosen

Every row is compared with TRGP seed by seed: the same data, the same first weights, the same order of batches.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics

import torch

from benchmarks.common import keyword, standard_error
from cuber import Stream, Task, learn
from cuber.errors import CuberError
from cuber.experiments import Experiment
from cuber.experiments.grid import numbers
from cuber.experiments.presets import BENCHMARKS
from cuber.methods.cuber import PAPER

ROWS: dict[str, tuple[str, dict]] = {
    "TRGP": ("trgp", {}),
    "FineTune": ("finetune", {}),
    "GPM": ("gpm", {}),
    "CUBER": ("cuber", {}),
    "SoftCUBER": ("soft-cuber", {}),
    "TRGP, ema 1": ("trgp", {"ema": 1.0}),
    "CUBER, ema 1": ("cuber", {"ema": 1.0}),
    "SoftCUBER, ema 1": ("soft-cuber", {"ema": 1.0}),
    "CUBER, as printed": ("cuber", PAPER),
    "  checked at every step": ("cuber", {**PAPER, "check": "step"}),
    "  lam 0.1": ("cuber", {**PAPER, "lam": 0.1}),
    "  lam 0": ("cuber", {**PAPER, "lam": 0.0}),
    "  eps2 -1": ("cuber", {**PAPER, "eps2": -1.0}),
    "squared, eps2 0": ("cuber", {**PAPER, "penalty": "squared"}),
    "squared, eps2 -0.2": ("cuber", {"penalty": "squared", "eps2": -0.2, "lam": 1.0}),
    "energy, eps2 0": ("cuber", {"penalty": "energy", "eps2": 0.0, "lam": 1.0}),
    "energy, eps2 0, lam 3": ("cuber", {"penalty": "energy", "eps2": 0.0, "lam": 3.0}),
    "energy, eps2 -0.1": ("cuber", {"penalty": "energy", "eps2": -0.1, "lam": 1.0}),
    "energy, eps2 -0.1, lam 3": ("cuber", {"penalty": "energy", "eps2": -0.1, "lam": 3.0}),
    "energy, eps2 -0.2": ("cuber", {"penalty": "energy", "eps2": -0.2, "lam": 1.0}),
    "energy, eps2 -0.2, lam 3": ("cuber", {"penalty": "energy", "eps2": -0.2, "lam": 3.0}),
    "energy, eps2 -1": ("cuber", {"penalty": "energy", "eps2": -1.0, "lam": 1.0}),
    "energy, eps2 -1, lam 3": ("cuber", {"penalty": "energy", "eps2": -1.0, "lam": 3.0}),
}


LARGER_VALIDATION: dict[str, dict[str, int]] = {
    "overlap-digits": {"validation_per_class": 40, "test_per_class": 50},
    "permuted-digits": {"validation": 400, "test": 297},
    "split-digits": {"validation_per_class": 60, "test_per_class": 60},
}
"""To choose by, the few samples that a run validates with are too few."""


def judged_by(benchmark: str, seed: int, part: str, changes: dict[str, int]) -> Stream:
    """The stream, judged by its test parts or, to choose settings, by its validation parts."""
    build = BENCHMARKS[benchmark].stream
    if part == "test":
        return build(seed, **changes)
    stream = build(seed, **LARGER_VALIDATION.get(benchmark, {}), **changes)
    tasks = [Task(task.name, task.train, task.validation, classes=task.classes) for task in stream]
    return Stream(stream.name, tasks, shared_head=stream.shared_head)


def measure(row: str, seed: int, options: argparse.Namespace) -> tuple[float, float, list[float]]:
    """ACC, BWT and the epochs (as a share of all) that each entry into regime 3 lasted."""
    preset = BENCHMARKS[options.benchmark]
    method, settings = ROWS[row]
    stream = judged_by(options.benchmark, seed, options.part, dict(options.stream))
    learner = Experiment(options.benchmark, method, seed, settings=settings).learner(stream)
    training = dataclasses.replace(preset.training, epochs=options.epochs or preset.training.epochs)
    result = learn(learner, stream, epochs=training.epochs, lr=training.lr, batch_size=training.batch_size, seed=seed)
    regimes = [
        r for by_layer in getattr(learner, "regimes", []) for by_task in by_layer.values() for r in by_task.values()
    ]
    lasted = [
        1.0 if regime.demoted_at is None else regime.demoted_at / training.epochs
        for regime in regimes
        if regime.number == 3 or regime.demoted_at is not None
    ]
    return result.acc, result.bwt, lasted


def mean_and_error(values: list[float]) -> str:
    """``mean ± standard error``."""
    return f"{statistics.mean(values):+6.2f} ± {standard_error(values):4.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("--part", choices=["validation", "test"], default="test")
    parser.add_argument("--seeds", default="0-4", help="as in 0-4 or 0,2,5")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS), metavar="ROW")
    parser.add_argument("--epochs", type=int, help="other than the benchmark's")
    parser.add_argument("--stream", nargs="*", default=[], type=keyword, help="train_per_class=20, say")
    options = parser.parse_args()
    try:
        seeds = numbers(options.seeds)
    except CuberError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    print(f"{options.benchmark}, {options.part} part, seeds {options.seeds}; ± is the standard error")
    print(f"{'':26}{'ACC':>8}{'BWT':>16}{'ACC - TRGP':>18}{'BWT - TRGP':>16}{'in regime 3':>14}{'lasted':>8}")
    reference: list[tuple[float, float]] = []
    for row in dict.fromkeys(["TRGP", *options.rows]):
        outcomes = [measure(row, seed, options) for seed in seeds]
        pairs = [(acc, bwt) for acc, bwt, _ in outcomes]
        reference = reference or pairs
        acc, bwt = ([pair[i] for pair in pairs] for i in (0, 1))
        better = [[pair[i] - other[i] for pair, other in zip(pairs, reference, strict=True)] for i in (0, 1)]
        lasted = [share for *_, shares in outcomes for share in shares]
        entries, share = len(lasted) / len(pairs), statistics.mean(lasted) if lasted else 0.0
        print(
            f"{row:26}{statistics.mean(acc):8.2f}  {mean_and_error(bwt)}   {mean_and_error(better[0])}  "
            f"{mean_and_error(better[1])}{entries:10.1f}{share:10.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
