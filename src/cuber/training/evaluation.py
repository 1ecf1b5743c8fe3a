"""Metric and loss on a split."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from cuber.core import distributed
from cuber.core.batches import device_of, to
from cuber.core.device import float64_zero
from cuber.core.inference import inferring
from cuber.core.learner import LossFunction, Method
from cuber.core.metric import ACCURACY, Mean, Metric
from cuber.errors import CuberError
from cuber.layers import evaluation_mode
from cuber.streams import FixedLoader, Split


class Score(NamedTuple):
    """Metric and loss, summed over samples."""

    samples: int
    total: float
    """The metric times the number of samples; of accuracy, in percent."""
    total_loss: float
    """NaN if no loss was computed."""

    @property
    def accuracy(self) -> float:
        """In percent, or the value of another metric."""
        return self.total / self.samples

    @property
    def loss(self) -> float:
        """Per sample."""
        return self.total_loss / self.samples


def shown(learner: Method, task: int, view: str) -> AbstractContextManager[nn.Module]:
    """Return a context in which the model answers for samples of a task: "told", "inferred", or "bare" weights."""
    if view == "inferred":
        return inferring(learner, truth=task)
    return learner.as_task(task if view == "told" else None)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Split,
    batch_size: int,
    loss_fn: LossFunction | None = None,
    order: int | None = None,
    *,
    shared: bool = False,
    metric: Metric = ACCURACY,
) -> Score:
    """Evaluate a model on a split, in evaluation mode.

    Args:
        loss_fn: Also compute this loss.
        order: Seed that shuffles the samples; it matters where batches are normalized by their own statistics.
        shared: Divide the batches among all processes, which must all call it.
        metric: What to measure.
    """
    device = device_of(model)
    measured, loss = metric.start(device), float64_zero(device)
    shared = shared and not metric.accumulates  # such objects need all batches
    with evaluation_mode(model):
        loader = FixedLoader(split, batch_size, order)
        own = islice(loader, distributed.rank(), None, distributed.processes()) if shared else loader
        for x, y in own:
            x, y = to((x, y), device)
            output = model(x)
            measured.add(output, y)
            if loss_fn is not None:
                loss += loss_fn(output, y).to(loss) * len(y)
    if shared and isinstance(measured, Mean):
        both = distributed.sum_tensors([measured.sum, loss])
        measured.sum, loss = both[0], both[1]
    total = measured.total(len(split))
    if not math.isfinite(total):
        raise CuberError(
            f"metric '{metric.name}' is {total / len(split)}: it must be a number for every batch, also where all "
            "targets of a sample are ignored"
        )
    return Score(len(split), total, float(loss) if loss_fn is not None else math.nan)
