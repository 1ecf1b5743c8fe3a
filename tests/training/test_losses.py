"""The losses of an epoch, looked at seldom, saved at any time."""

from __future__ import annotations

import torch

from cuber.training.evaluation import RunningLoss


def resume(losses: RunningLoss) -> RunningLoss:
    resumed = RunningLoss()
    resumed.load(losses.state())
    return resumed


def test_a_loss_that_is_not_finite_is_remembered_where_a_run_goes_on() -> None:
    losses = RunningLoss()
    for value in (1.0, float("nan"), 3.0):
        losses.add(torch.tensor(value), 2)
    resumed = resume(losses)
    resumed.add(torch.tensor(float("inf")), 2)
    resumed.mean()
    assert resumed.not_finite is not None
    assert resumed.not_finite[0] == 2


def test_the_mean_is_the_same_wherever_it_was_saved() -> None:
    values = [(0.1 * n, n + 1) for n in range(7)]
    whole = RunningLoss()
    parts = RunningLoss()
    for value, samples in values:
        whole.add(torch.tensor(value), samples)
        parts.add(torch.tensor(value), samples)
        parts = resume(parts)
    assert whole.mean() == parts.mean()
    assert parts.steps == len(values)
