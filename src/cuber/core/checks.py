"""Checks of what callers pass, each with one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cuber.errors import CuberError


def check_model(model: Any, owner: str) -> nn.Module:
    """Return the model that a learner works on: of one that ``torch.compile`` has wrapped, the model inside."""
    if not isinstance(model, nn.Module):
        raise CuberError(f"{owner} takes an nn.Module, not a {type(model).__name__}")
    return getattr(model, "_orig_mod", model)


def check_can_begin(task: int | None, loss: Any) -> None:
    """Raise unless a task can begin: no other is being learned, and there is a loss."""
    if task is not None:
        raise CuberError(f"task {task} has begun already: call end_task before the next begin_task")
    if loss is None:
        raise CuberError("begin_task needs loss_fn(output, target), or the learner a forward=")


def check_attached(verb: str, *, detached: bool, viewed: bool) -> None:
    """Raise unless a learner still has its model, shows it outside ``as_task``, and can compute gradients."""
    if detached:
        raise CuberError("this learner was detached from its model: make a new one")
    if viewed:
        raise CuberError(f"{verb} inside as_task, which would then show the old task again: leave the block first")
    if torch.is_inference_mode_enabled():
        raise CuberError(f"{verb} needs gradients: call it outside torch.inference_mode()")


def check_task(task: Any, *, known: int) -> None:
    """Raise unless ``task`` is the number of one of ``known`` tasks."""
    if not isinstance(task, int) or isinstance(task, bool):
        raise CuberError(f"as_task takes the number of a task or None, not {task!r}")
    if not 0 <= task < known:
        learned = f"tasks 0 to {known - 1} have" if known > 1 else "only task 0 has" if known else "none has"
        raise CuberError(f"as_task({task}): that task has not been learned ({learned})")


def check_pair(batch: Any) -> None:
    """Raise unless a batch is ``(input, target)``."""
    if not (isinstance(batch, list | tuple) and len(batch) == 2):
        raise CuberError(
            f"the loader yields a {type(batch).__name__} where (input, target) is expected: "
            "give the learner a forward=lambda model, batch: loss"
        )


def check_loss(loss: Any, task: int) -> None:
    """Raise unless a task can begin with this loss."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise CuberError("the loss must be a tensor with one value, a mean over the batch")
    if not bool(loss.isfinite()):
        raise CuberError(f"task {task}: the loss is {float(loss)} before the first step; check the inputs")


def check_dense(model: nn.Module, owner: str) -> None:
    """Raise if a trained layer has sparse gradients, which cannot be combined with others."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise CuberError(
                f"{owner} mixes gradients, and those of '{name}' are sparse: make that layer with sparse=False"
            )


@contextmanager
def explained(beginning: str) -> Iterator[None]:
    """While open, report any exception of a user's model or loss as ``CuberError(f"{beginning}: {reason}")``."""
    try:
        yield
    except CuberError:
        raise
    except Exception as error:
        raise CuberError(f"{beginning}: {' '.join(str(error).split())}") from error
