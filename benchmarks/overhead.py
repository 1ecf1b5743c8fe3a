"""What a step costs besides its products: on a network so small that these take no time, in microseconds."""

from __future__ import annotations

import statistics

import torch

from benchmarks.subjects import METHODS, Subject
from benchmarks.timing import Figure, seconds
from cuber.networks import MLP

SMALL = Subject(
    "small MLP",
    lambda: MLP(24, 16, 16, 10),
    (24,),
    10,
    pools=(18, 16, 14),
    grown=(0.2, 0.5, 0.8, 1.0),
    steps=200,
)


def measure(quick: bool) -> list[Figure]:
    torch.manual_seed(0)
    works = {"bare": SMALL.bare()} | {method: SMALL.ours(method) for method in METHODS}
    for work in works.values():
        work()
    taken = [{name: seconds(work) for name, work in works.items()} for _ in range(5 if quick else 25)]
    step = {name: 1e6 * statistics.median(turn[name] for turn in taken) / SMALL.steps for name in works}
    return [
        Figure("step, small MLP, bare loop", step["bare"], "us"),
        *(Figure(f"step, small MLP, what {name} adds", step[name] - step["bare"], "us") for name in METHODS),
    ]
