"""What a step costs with other optimizers than plain SGD, beside the bare loop with the same one."""

from __future__ import annotations

import torch

from benchmarks.subjects import ALEXNET_SUBJECT, MLP_SUBJECT
from benchmarks.timing import Figure, ratios
from cuber.training.optimizers import OptimizerFactory

OPTIMIZERS: dict[str, OptimizerFactory] = {
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
    "Adam": lambda parameters, lr: torch.optim.Adam(parameters, lr),
}


def measure(quick: bool) -> list[Figure]:
    figures = []
    for subject in (MLP_SUBJECT, ALEXNET_SUBJECT):
        for name, make in OPTIMIZERS.items():
            torch.manual_seed(0)
            works = {"bare": subject.bare(make)} | {method: subject.ours(method, make) for method in ("GPM", "TRGP")}
            found = ratios(works, "bare", 3 if quick else 9)
            figures += [Figure(f"step, {subject.name}, {method}, {name}", found[method]) for method in ("GPM", "TRGP")]
    return figures
