"""Batches of samples from several tasks, each to be answered as its own task is."""

from __future__ import annotations

from torch import Tensor, nn

from cuber.core.learner import LossFunction
from cuber.networks.heads import MultiHead, heads_of


def can_mix(model: nn.Module) -> bool:
    """Whether one forward pass can answer for several tasks: the heads, if there are any, come last."""
    return all(multi_head is model for multi_head in heads_of(model))


def mixed_loss(model: nn.Module, loss_fn: LossFunction, x: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
    """The mean loss over the samples of a batch, where ``tasks`` says whose head each of them needs."""
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
