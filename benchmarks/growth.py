"""How the time of a task grows with the number of tasks before it: no further than the pool does."""

from __future__ import annotations

import statistics

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.subjects import learn_task, perceptron
from benchmarks.timing import Figure, seconds
from cuber import CUBER

BATCH = 10


def measure(quick: bool) -> list[Figure]:
    tasks, samples = (12, 300) if quick else (50, 2000)
    torch.manual_seed(0)
    inputs, labels = _images(samples)
    learner = CUBER(perceptron(), threshold=[0.95, 0.99, 0.99], threshold_step=0.0, eps2=0.0, lam=1.0, penalty="norm")
    taken, sizes = [], []
    for _ in range(tasks):
        permuted = inputs[:, torch.randperm(784)]
        loader = list(zip(permuted.split(BATCH), labels.split(BATCH), strict=True))
        taken.append(seconds(lambda loader=loader: learn_task(learner, loader)))  # type: ignore[misc]
        sizes.append(sum(pool.size for pool in learner.memory.values()))
    figures = []
    for first, last in ((0, 5), (5, 10), (10, 20), (20, 50)):
        if last <= tasks or first < tasks < last:
            share = sizes[min(last, tasks) - 1] / (784 + 100 + 100)
            name = f"a task, of tasks {first} to {min(last, tasks) - 1}; pool then {share:.0%} full"
            figures.append(Figure(name, statistics.median(taken[first:last]), "s"))
    return figures


def _images(count: int) -> tuple[Tensor, Tensor]:
    """Ten classes around smooth means: of low rank, as handwritten digits are."""
    labels = torch.randint(10, (count,))
    means = functional.interpolate(torch.randn(10, 1, 7, 7), 28, mode="bilinear").flatten(1)
    spread = functional.interpolate(torch.randn(count, 1, 9, 9), 28, mode="bilinear").flatten(1)
    return means[labels] + 0.5 * spread, labels
