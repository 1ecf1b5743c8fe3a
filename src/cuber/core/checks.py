"""What a caller may have got wrong, in one sentence each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.errors import CuberError


def check_task(task: Any, *, known: int) -> None:
    """Raise unless it is the number of one of so many tasks."""
    if not isinstance(task, int) or isinstance(task, bool):
        raise CuberError(f"as_task takes the number of a task or None, not {task!r}")
    if not 0 <= task < known:
        learnt = f"tasks 0 to {known - 1} have" if known > 1 else "only task 0 has" if known else "none has"
        raise CuberError(f"as_task({task}): that task has not been learnt ({learnt})")


def check_loss(loss: Any, task: int) -> None:
    """Raise unless it is a loss that one can begin with."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise CuberError("the loss must be a tensor with one value, a mean over the batch")
    if not bool(loss.isfinite()):
        raise CuberError(f"task {task}: the loss is {float(loss)} before the first step; check the inputs")


def check_trains(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Raise unless an optimizer trains any of these."""
    ours = set(map(id, parameters))
    if not any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
        raise CuberError(
            "the optimizer trains nothing of what this task trains: build it from learner.parameters(), "
            "after begin_task"
        )


def check_dense(model: nn.Module, owner: str) -> None:
    """Raise if a layer gives gradients of a kind that cannot be mixed with others."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise CuberError(
                f"{owner} mixes gradients, and those of '{name}' are sparse: make that layer with sparse=False"
            )
