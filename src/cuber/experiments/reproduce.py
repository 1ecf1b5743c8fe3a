"""The tables and figures of the paper: the runs that each needs, at three scales, and how long they will take."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cuber.errors import CuberError, unknown
from cuber.experiments.experiment import Experiment, run
from cuber.experiments.grid import Cell, grid
from cuber.experiments.presets import BENCHMARKS

FAMILY = ("gpm", "trgp", "cuber")
BASELINES = ("ewc", "hat", "agem", "er")
MAIN: Mapping[str, tuple[str, ...]] = {
    "split-cifar100": ("multitask", "owm", *BASELINES, *FAMILY),
    "split-miniimagenet": ("multitask", *BASELINES, *FAMILY),
    "five-datasets": ("multitask", *BASELINES, *FAMILY),
    "permuted-mnist": ("multitask", "owm", "ewc", "agem", "er", *FAMILY),
}
"""Benchmark -> methods of the main table. HAT needs to know the task, which Permuted MNIST does not tell."""


@dataclass(frozen=True)
class Target:
    """A table or figure: benchmark -> methods that it needs, and what `cuber compare` or `cuber report` call it."""

    help: str
    methods: Mapping[str, tuple[str, ...]]
    tables: tuple[str, ...] = ()
    figure: str | None = None
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of settings to try besides those of the benchmark."""


TARGETS = {
    "table1": Target("ACC and BWT of every method", MAIN, ("acc",)),
    "table2": Target(
        "backward transfer on overlapping tasks", {"overlap-cifar100": ("trgp", "cuber")}, ("acc", "selected")
    ),
    "table3": Target("forward transfer over GPM", dict.fromkeys(MAIN, FAMILY), ("forward",)),
    "table4": Target("eps2 of CUBER", {"split-cifar100": ("cuber",)}, ("sweep",), settings={"eps2": [0.2, 0.5]}),
    "table5": Target(
        "training time", {name: methods for name, methods in MAIN.items() if name != "permuted-mnist"}, ("time",)
    ),
    "figure-evolution": Target("accuracy of each task over time", MAIN, figure="accuracy-evolution"),
    "figure-memory": Target("memory of each method", MAIN, figure="memory"),
}
"""By the numbers of the paper."""


@dataclass(frozen=True)
class Scale:
    """How much of the paper's runs is run."""

    help: str
    seeds: range
    epochs: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    """Fields of each experiment."""


SCALES = {
    "full": Scale("as in the paper, 5 seeds", range(5)),
    "short": Scale(
        "3 seeds, at most 25 epochs and 5,000 training samples per task", range(3), 25, {"train_per_task": 5000}
    ),
    "smoke": Scale(
        "1 seed, 2 tasks of 128 training samples, 1 epoch: shows that everything runs",
        range(1),
        1,
        {"tasks": 2, "train_per_task": 128, "test_per_task": 100},
    ),
}
MEASURED_STEPS = 4


def cells_of(
    target: str,
    scale: str,
    out: str | os.PathLike[str],
    *,
    benchmarks: Collection[str] | None = None,
    methods: Collection[str] | None = None,
    **fields: Any,
) -> list[Cell]:
    """Return the runs of a target, each with its directory: ``out/BENCHMARK/VARIANT/seed-N``.

    Args:
        benchmarks, methods: Only these (default: all that the target has).
        fields: Further fields of every experiment, such as ``data_dir``.
    """
    chosen, size = find(target), find_scale(scale)
    known = {method for needed in chosen.methods.values() for method in needed}
    for what, names, choices in (("benchmark", benchmarks, chosen.methods), ("method", methods, known)):
        for name in names or ():
            if name not in choices:
                raise unknown(f"{what} of {target}", name, choices)
            if list(names or ()).count(name) > 1:
                raise CuberError(f"{what} {name} is there more than once: name it once")
    cells: list[Cell] = []
    for benchmark, needed in chosen.methods.items():
        own = [method for method in needed if methods is None or method in methods]
        if not own or (benchmarks is not None and benchmark not in benchmarks):
            continue
        usual = BENCHMARKS[benchmark].training.epochs
        shortened = {"epochs": size.epochs} if size.epochs is not None and size.epochs < usual else {}
        fixed = {**size.limits, **shortened, **fields}
        cells += grid(out, [benchmark], own, size.seeds, **fixed)
        if chosen.settings:
            cells += grid(out, [benchmark], own, size.seeds, chosen.settings, **fixed)
    if not cells:
        raise CuberError(f"{target} has no {' or '.join(methods or ())} on {' or '.join(benchmarks or ())}")
    return cells


def find(target: str) -> Target:
    """Return the target of that name."""
    if target not in TARGETS:
        raise unknown("table or figure", target, TARGETS)
    return TARGETS[target]


def find_scale(scale: str) -> Scale:
    """Return the scale of that name."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return SCALES[scale]


def seconds_needed(experiments: Sequence[Experiment]) -> float:
    """Estimate the training time of all experiments, from a few steps of each method on each benchmark.

    It is too large where tasks stop early, and leaves out tests and bases.
    """
    per_step: dict[tuple[str, str], float] = {}
    steps: dict[str, int] = {}
    for each in experiments:
        key = each.benchmark, each.method
        if each.benchmark not in steps:
            size = each.training().batch_size
            steps[each.benchmark] = sum(math.ceil(len(task.train) / size) for task in each.stream())
        if key not in per_step:
            per_step[key] = seconds_per_step(each)
    return sum(per_step[e.benchmark, e.method] * steps[e.benchmark] * e.training().epochs for e in experiments)


def seconds_per_step(experiment: Experiment) -> float:
    """Measure a training step in the second task; the first one warms up, and leaves what the method protects."""
    size = experiment.training().batch_size
    few: dict[str, Any] = {"tasks": 2, "epochs": 1, "train_per_task": MEASURED_STEPS * size, "test_per_task": 20}
    result = run(replace(experiment, **few))
    together = len(result.history) == 1
    samples = sum(task["train"] for task in (result.tasks if together else result.tasks[-1:]))
    return result.history[-1][-1].seconds / math.ceil(samples / size)
