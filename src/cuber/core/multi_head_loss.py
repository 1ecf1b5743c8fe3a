"""The loss of a batch with samples of several tasks, each answered by its own task's head."""

from __future__ import annotations

from torch import Tensor, nn

from cuber.core.learner import LossFunction
from cuber.networks.heads import MultiHead, heads_of


def can_mix(model: nn.Module) -> bool:
    """Return whether one forward pass can serve several tasks: heads, if there are any, come last."""
    return all(multi_head is model for multi_head in heads_of(model))


def mixed_loss(model: nn.Module, loss_fn: LossFunction, x: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
    """Return the mean loss over a batch, where ``tasks`` has the task number of each sample."""
    if not isinstance(model, MultiHead):
        return loss_fn(model(x), y)
    with model.mixed(tasks):
        output = model(x)
    total = output.new_zeros(())
    for task in tasks.unique().tolist():
        own = tasks == task
        loss = loss_fn(output[own, : model.classes_of(task)], y[own])
        total = total + loss * (int(own.sum()) / len(tasks))
    return total
