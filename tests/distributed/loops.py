"""A user's training loop under ``DistributedDataParallel``, which is also that of a single process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, Optimizer

from cuber import Method, MultiHead, Multitask
from cuber.core import distributed
from cuber.core.replay_method import ReplayMethod
from cuber.methods import METHODS
from cuber.networks import MLP
from tests.loops import OPTIMIZERS, detach, loss_fn

TASKS, SAMPLES, BATCH, EPOCHS = 3, 30, 16, 2
"""30: the last batch is smaller, and of the samples that bases are computed from, the processes have unequal shares."""

SETTINGS: dict[str, dict[str, Any]] = {
    "cuber": {"eps1": 0.1, "eps2": -1.0, "samples": 21},
    "trgp": {"eps1": 0.1, "samples": [21, 5, 17]},
    "gpm": {"samples": 21},
    "soft-cuber": {"eps1": 0.1, "samples": 21},
    "ewc": {"samples": 21},
    "hat": {"smax": 20.0},
    "agem": {"memory": 20, "replay": 6},
    "er": {"memory": 20, "replay": 6},
}
"""Old tasks are reused and improved; memories overflow."""


class Words(nn.Embedding):
    """Reads the largest number of a sample as a word, so that each process has words of its own."""

    def __init__(self) -> None:
        super().__init__(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.argmax(1))


MODELS = {
    "plain": lambda: MLP(8, 12, 10, 3, bias=True),
    "batch norm": lambda: nn.Sequential(
        nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3)
    ),
    "heads": lambda: MultiHead(MLP(8, 12, 10, 10, bias=True, last_relu=True), 10, [3] * TASKS),
    "wide": lambda: MLP(8, 100, 600, 3, bias=True),
    "words": lambda: nn.Sequential(Words(), nn.Linear(12, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.3), nn.ReLU(), nn.Linear(12, 3)),
}


class Case(NamedTuple):
    method: str
    optimizer: str
    model: str


def cases(method: str) -> list[Case]:
    """Return the combinations of a method."""
    found = [Case(method, optimizer, model) for optimizer in ("SGD", "AdamW") for model in list(MODELS)[:3]]
    if method in ("cuber", "gpm"):  # layers so wide that a single process projects inputs instead of gradients
        found += [Case(method, "SGD", "wide"), Case(method, "LBFGS", "plain"), Case(method, "SGD", "words")]
    return [*found, Case(method, "SGD", "dropout")] if method in ("er", "agem") else found


def data(task: int) -> tuple[Tensor, Tensor]:
    """Return inputs that lie in overlapping subspaces, and their classes."""
    generator = torch.Generator().manual_seed(task)
    mixing = torch.randn(4, 8, generator=torch.Generator().manual_seed(99))
    own = torch.randn(2, 8, generator=generator)
    x = torch.randn(SAMPLES, 6, generator=generator) @ torch.cat([mixing, own]) / 2
    return x, torch.randint(3, (SAMPLES,), generator=generator)


def loaders(method: str, dtype: torch.dtype = torch.float32) -> Iterator[list[tuple[Tensor, ...]]]:
    """Yield the batches of each task, or of all at once: this process's part of each."""
    both = [data(task) for task in range(TASKS)]
    tasks = [(x.to(dtype), y, torch.full((SAMPLES,), task)) for task, (x, y) in enumerate(both)]
    if METHODS[method].joint:
        order = torch.randperm(TASKS * SAMPLES, generator=torch.Generator().manual_seed(0))
        tasks = [tuple(torch.cat(parts)[order] for parts in zip(*tasks, strict=True))]  # type: ignore[list-item]
    for columns in tasks:
        used = columns if METHODS[method].joint else columns[:2]
        batches = zip(*(column.split(BATCH) for column in used), strict=True)
        yield [tuple(column[distributed.share(len(column)).part] for column in batch) for batch in batches]


def train(case: Case, *, around: bool = False) -> dict[str, Any]:
    """Learn all tasks; return the weights and all that the learner remembers.

    Args:
        around: make the learner around one ``DistributedDataParallel(model)``, which serves all tasks.
    """
    torch.manual_seed(distributed.rank())  # processes start with different weights, and draw different numbers
    # The quasi-Newton steps of LBFGS make rounding errors large.
    dtype = torch.float64 if case.optimizer == "LBFGS" else torch.float32
    model: nn.Module = MODELS[case.model]().to(dtype)
    parallel = DistributedDataParallel(model, find_unused_parameters=True) if around else model
    learner = METHODS[case.method](parallel, **SETTINGS.get(case.method, {}))
    for loader in loaders(case.method, dtype):
        learner.begin_task(loader, loss_fn)
        optimizer = learner.wrap(OPTIMIZERS[case.optimizer](learner.parameters()))
        if distributed.is_active() and not around:
            old_heads = isinstance(learner, ReplayMethod) and case.model == "heads"
            parallel = DistributedDataParallel(model, find_unused_parameters=old_heads)
        for _ in range(EPOCHS):
            for batch in loader:
                step(learner, optimizer, parallel, batch)
            learner.end_epoch()
        learner.end_task(loader)
    state = learner.state_dict()
    detach(learner)
    return {"model": model.state_dict(), "learner": state}


def step(learner: Method, optimizer: Optimizer, parallel: nn.Module, batch: tuple[Tensor, ...]) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        if isinstance(learner, Multitask):  # whose loss does not pass DistributedDataParallel
            loss = learner.loss(batch)
            loss.backward()
            learner.average_gradients()
        else:
            loss = loss_fn(parallel(batch[0]), batch[1])
            loss.backward()
        return loss

    if isinstance(optimizer, LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def differences(one: Any, other: Any, name: str = "") -> Iterator[str]:
    """Iterate over the places where two nested containers differ in any bit."""
    if isinstance(one, dict) and one.keys() == other.keys():
        for key in one:
            yield from differences(one[key], other[key], f"{name}.{key}")
    elif isinstance(one, list | tuple) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{name}.{i}")
    elif not (torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one == other):
        yield name


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest difference between the weights of two models."""
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)
