"""A user's training loop under ``DistributedDataParallel``, which is also that of a single process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cuber import MultiHead, Multitask
from cuber.core import distributed
from cuber.core.replay_method import ReplayMethod
from cuber.methods import METHODS
from cuber.networks import MLP
from tests.loops import OPTIMIZERS, loss_fn

TASKS, SAMPLES, BATCH, EPOCHS = 3, 46, 16, 2
"""46: the last batch is smaller, and of the samples that bases are computed from, the processes have unequal shares."""

SETTINGS: dict[str, dict[str, Any]] = {
    "cuber": {"eps1": 0.1, "eps2": -1.0, "samples": 29},
    "trgp": {"eps1": 0.1, "samples": [29, 5, 17]},
    "gpm": {"samples": 29},
    "soft-cuber": {"eps1": 0.1, "samples": 29},
    "ewc": {"samples": 29},
    "hat": {"smax": 20.0},
    "agem": {"memory": 20, "replay": 6},
    "er": {"memory": 20, "replay": 6},
}
"""Old tasks are reused and improved; memories overflow."""

MODELS = {
    "plain": lambda: MLP(8, 12, 10, 3, bias=True),
    "batch norm": lambda: nn.Sequential(
        nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3)
    ),
    "heads": lambda: MultiHead(nn.Sequential(MLP(8, 12, 10, 10, bias=True, last_relu=True)), 10, [3] * TASKS),
}


class Case(NamedTuple):
    method: str
    optimizer: str
    model: str


CASES = [Case(method, optimizer, model) for method in METHODS for optimizer in ("SGD", "AdamW") for model in MODELS]


def data(task: int) -> tuple[Tensor, Tensor]:
    """Return inputs that lie in overlapping subspaces, and their classes."""
    generator = torch.Generator().manual_seed(task)
    mixing = torch.randn(4, 8, generator=torch.Generator().manual_seed(99))
    own = torch.randn(2, 8, generator=generator)
    x = torch.randn(SAMPLES, 6, generator=generator) @ torch.cat([mixing, own]) / 2
    return x, torch.randint(3, (SAMPLES,), generator=generator)


def loaders(method: str) -> Iterator[list[tuple[Tensor, ...]]]:
    """Yield the batches of each task, or of all at once: this process's part of each."""
    tasks = [(*data(task), torch.full((SAMPLES,), task)) for task in range(TASKS)]
    if METHODS[method].joint:
        order = torch.randperm(TASKS * SAMPLES, generator=torch.Generator().manual_seed(0))
        tasks = [tuple(torch.cat(parts)[order] for parts in zip(*tasks, strict=True))]  # type: ignore[list-item]
    for columns in tasks:
        used = columns if METHODS[method].joint else columns[:2]
        batches = zip(*(column.split(BATCH) for column in used), strict=True)
        yield [tuple(column[distributed.share(len(column)).part] for column in batch) for batch in batches]


def train(case: Case, *, around: bool = False, **settings: Any) -> dict[str, Any]:
    """Learn all tasks; return the weights and all that the learner remembers.

    Args:
        around: make the learner around one ``DistributedDataParallel(model)`` for all tasks.
    """
    torch.manual_seed(distributed.rank())  # processes start with different weights, and draw different numbers
    model: nn.Module = MODELS[case.model]()
    kind = METHODS[case.method]
    parallel = DistributedDataParallel(model, find_unused_parameters=True) if around else model
    learner = kind(parallel, **{**SETTINGS.get(case.method, {}), **settings})
    for task, loader in enumerate(loaders(case.method)):
        learner.begin_task(loader, loss_fn)
        optimizer = learner.wrap(OPTIMIZERS[case.optimizer](learner.parameters()))
        if distributed.is_active() and not around:
            unused = isinstance(learner, ReplayMethod) and case.model == "heads"
            parallel = DistributedDataParallel(model, find_unused_parameters=unused)
        for _ in range(EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                if isinstance(learner, Multitask):
                    learner.loss(batch).backward()
                    learner.average_gradients()
                else:
                    loss_fn(parallel(batch[0]), batch[1]).backward()
                optimizer.step()
            learner.end_epoch()
        learner.end_task(loader)
        del task
    state = learner.state_dict()
    learner.detach()
    return {"model": model.state_dict(), "learner": state}


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over all numbers and tensors in nested containers, with their places."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from tensors(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from tensors(part, f"{name}.{i}")
    else:
        yield name, value
