"""Accuracy and loss on a split."""

from __future__ import annotations

import math
from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from cuber.core import distributed
from cuber.core.batches import device_of, to
from cuber.core.device import float64_zero
from cuber.core.learner import LossFunction
from cuber.layers import evaluation_mode
from cuber.streams import FixedLoader, Split


class Score(NamedTuple):
    """Correct answers and loss, summed over samples."""

    samples: int
    correct: int
    total_loss: float
    """NaN if no loss was computed."""

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.correct / self.samples

    @property
    def loss(self) -> float:
        """Per sample."""
        return self.total_loss / self.samples


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Split,
    batch_size: int,
    loss_fn: LossFunction | None = None,
    order: int | None = None,
    *,
    shared: bool = False,
) -> Score:
    """Evaluate a model on a split, in evaluation mode.

    Args:
        loss_fn: Also compute this loss.
        order: Seed that shuffles the samples; it matters where batches are normalized by their own statistics.
        shared: Divide the batches among all processes, which must all call it.
    """
    device = device_of(model)
    correct = torch.zeros((), dtype=torch.long, device=device)
    loss = float64_zero(device)
    with evaluation_mode(model):
        loader = FixedLoader(split, batch_size, order)
        own = islice(loader, distributed.rank(), None, distributed.processes()) if shared else loader
        for x, y in own:
            x, y = to((x, y), device)
            output = model(x)
            correct += (output.argmax(1) == y).sum()
            if loss_fn is not None:
                loss += (loss_fn(output, y) * len(y)).to(loss)
    if shared:
        both = distributed.sum_tensors([correct, loss])
        correct, loss = both[0], both[1]
    return Score(len(split), int(correct), float(loss) if loss_fn is not None else math.nan)
