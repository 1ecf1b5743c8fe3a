"""Accuracy and loss on a part of a task: evaluation mode, fixed order, fixed batch size."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn

from cuber.layers import evaluation_mode, normalizes_by_batch
from cuber.methods.method import LossFunction, Method
from cuber.streams import FixedLoader, Part, Stream
from cuber.training.randomness import derive

ORDERS = 5
"""Orders of the test samples by which the spread that they cause is measured."""


class Score(NamedTuple):
    """How well a model does."""

    accuracy: float
    """In percent."""
    loss: float
    """NaN where it was not asked for."""


@torch.no_grad()
def evaluate(
    model: nn.Module, part: Part, batch_size: int, loss_fn: LossFunction | None = None, order: int | None = None
) -> Score:
    """The score of the model as it now answers; the loss too where ``loss_fn`` is given.

    ``order`` is the seed of another order of the samples, which matters where batches are normalized by themselves.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    correct = torch.zeros((), dtype=torch.long, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    with evaluation_mode(model):
        for x, y in FixedLoader(part, batch_size, order):
            x, y = x.to(device), y.to(device)
            output = model(x)
            correct += (output.argmax(1) == y).sum()
            if loss_fn is not None:
                loss += loss_fn(output, y) * len(y)
    count = len(part)
    return Score(100 * int(correct) / count, float(loss) / count if loss_fn is not None else math.nan)


def reshuffled(learner: Method, stream: Stream, batch_size: int, seed: int) -> list[list[float]]:
    """The accuracy of every task for several orders of its test samples; nothing where the order cannot matter."""
    if not normalizes_by_batch(learner.model):
        return []

    def accuracy(task: int, order: int) -> float:
        with learner.as_task(task) as model:
            return evaluate(
                model, stream[task].test, batch_size, order=derive(seed, "test order", order, task)
            ).accuracy

    return [[accuracy(task, order) for task in range(len(stream))] for order in range(ORDERS)]
