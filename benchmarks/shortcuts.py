"""What each shortcut of the fast back end buys: the time of a step without it, beside a step with all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.subjects import SUBJECTS, Subject, plain
from benchmarks.timing import Figure, ratios
from cuber.core import pooled
from cuber.layers.backends import FastBackend, PlainBackend
from cuber.subspace import constraint
from cuber.training.optimizers import OptimizerFactory

MOMENTUM: OptimizerFactory = lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9)  # noqa: E731


class ProjectsGradients(FastBackend):
    def _records(self, module: nn.Module, rows: Tensor, y: Tensor) -> bool:
        return False


class ScalesWeights(FastBackend):
    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        scaled = self.layer.scaling is not None
        return PlainBackend.forward(self, module, x) if scaled else FastBackend.forward(self, module, x)


class ReadsWeights(FastBackend):
    def reads_anchor(self, module: nn.Module) -> bool:
        return False


class RecomputesDisplacements(FastBackend):
    def _agrees(self, displacement: Tensor) -> bool:
        return False


class AlwaysRestores(FastBackend):
    def has_drifted(self) -> bool:
        return True


@contextmanager
def changed(module: Any, name: str, value: Any) -> Iterator[None]:
    """While open, a name of a module has another value."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


SHORTCUTS: dict[str, tuple[str, OptimizerFactory, type[FastBackend], Callable[[], Any]]] = {
    "project inputs, not gradients": ("GPM", plain, ProjectsGradients, nullcontext),
    "project by the complement": (
        "GPM",
        plain,
        FastBackend,
        lambda: changed(constraint, "CLEARLY_FEWER", 0.0),
    ),
    "scale inputs, not weights": ("TRGP", plain, ScalesWeights, nullcontext),
    "read W U where it is anchored": ("TRGP", plain, ReadsWeights, nullcontext),
    "learn only what a scaling can be": (
        "TRGP",
        plain,
        FastBackend,
        lambda: changed(pooled, "supports_of", lambda *_: []),
    ),
    "cache displacements": ("CUBER", plain, RecomputesDisplacements, nullcontext),
    "restore only what has drifted": ("GPM", MOMENTUM, AlwaysRestores, nullcontext),
}
"""Shortcut -> method and optimizer that use it, and how to do without: another back end, or a patch."""


def without(subject: Subject, shortcut: str) -> Callable[[], None]:
    method, optimizer, backend, patch = SHORTCUTS[shortcut]
    learner = subject.learner(method)
    for layer in learner.layers.values():  # type: ignore[attr-defined]
        layer.backend = backend(layer)
    with patch():
        return subject.steps_of(learner, optimizer)


def measure(quick: bool) -> list[Figure]:
    torch.set_num_threads(1)
    figures = []
    for subject in SUBJECTS[:1] if quick else SUBJECTS:
        for shortcut, (method, optimizer, _, _) in SHORTCUTS.items():
            torch.manual_seed(0)
            works = {"with": subject.ours(method, optimizer), "without": without(subject, shortcut)}
            found = ratios(works, "with", 5 if quick else 15)["without"]
            figures.append(Figure(f"without '{shortcut}', {subject.name}, {method}", found))
    return figures
