"""One output layer per task, on any backbone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber.errors import CuberError


class MultiHead(nn.Module):
    """A backbone followed by the present task's own linear head; learners choose the head for you.

    Heads belong to their tasks: they are trained with them, never projected, and left alone afterwards.

    >>> model = MultiHead(nn.Flatten(), features=64, classes_per_task=[2, 2, 3])
    >>> model.select_task(2)
    >>> len(model.heads[2].bias)
    3
    """

    def __init__(
        self, backbone: nn.Module, features: int, classes_per_task: Sequence[int], *, bias: bool = True
    ) -> None:
        super().__init__()
        counts = classes_per_task if isinstance(classes_per_task, Sequence) else [None]
        if any(not isinstance(classes, int) or classes < 1 for classes in counts):
            raise CuberError(
                f"MultiHead takes the number of classes of every task, such as [10, 10, 10], not {classes_per_task!r}"
            )
        self.backbone = backbone
        self.features = features
        self.heads = nn.ModuleList(nn.Linear(features, classes, bias=bias) for classes in classes_per_task)
        self.task = 0
        self._tasks: Tensor | None = None

    def add_head(self, classes: int, *, bias: bool = True) -> None:
        """A head for one more task than planned."""
        head = nn.Linear(self.features, classes, bias=bias)
        for like in self.parameters():
            head = head.to(like)
            break
        self.heads.append(head)

    def select_task(self, task: int) -> None:
        """Answer for this task from now on."""
        if not 0 <= task < len(self.heads):
            raise CuberError(
                f"MultiHead has heads for tasks 0 to {len(self.heads) - 1} but not for task {task}: "
                "name all tasks in classes_per_task, or call add_head(classes)"
            )
        self.task = task

    def classes_of(self, task: int) -> int:
        """How many classes a task's head tells apart."""
        return len(cast(nn.Linear, self.heads[task]).weight)

    @contextmanager
    def mixed(self, tasks: Tensor) -> Iterator[None]:
        """While open, each sample of a batch is answered by the head of its own task, with zeros up to the widest."""
        self._tasks = tasks
        try:
            yield
        finally:
            self._tasks = None

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone(x)
        return self.heads[self.task](features) if self._tasks is None else self._answer_each(features, self._tasks)

    def _answer_each(self, features: Tensor, tasks: Tensor) -> Tensor:
        width = max(map(self.classes_of, range(len(self.heads))))
        order = tasks.argsort(stable=True)
        answers = []
        for task, rows in zip(*_runs(tasks[order]), strict=True):
            answer = self.heads[task](features[order[rows]])
            answers.append(functional.pad(answer, (0, width - answer.shape[1])))
        return torch.cat(answers)[order.argsort()]


def _runs(tasks: Tensor) -> tuple[list[int], list[slice]]:
    """Each task in a sorted tensor of them, and where it lies."""
    values, counts = tasks.unique_consecutive(return_counts=True)
    ends = counts.cumsum(0).tolist()
    return values.tolist(), [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def heads_of(model: nn.Module) -> list[MultiHead]:
    """Every MultiHead in a model, the model itself included."""
    return [module for module in model.modules() if isinstance(module, MultiHead)]


def head_parameters(model: nn.Module) -> Iterable[nn.Parameter]:
    """The parameters of all heads of all tasks."""
    for multi_head in heads_of(model):
        yield from multi_head.heads.parameters()


def other_head_parameters(model: nn.Module, tasks: Collection[int]) -> Iterable[nn.Parameter]:
    """The parameters of all heads but those of some tasks, and of what those share with others."""
    own = {id(parameter) for multi in heads_of(model) for task in tasks for parameter in multi.heads[task].parameters()}
    return (parameter for parameter in head_parameters(model) if id(parameter) not in own)
