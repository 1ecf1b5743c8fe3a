"""The losses of an epoch, looked at seldom, saved at any time."""

from __future__ import annotations

import torch

from cuber.training.losses import Losses


def test_a_loss_that_is_not_finite_is_remembered_where_a_run_goes_on() -> None:
    losses = Losses()
    for value in (1.0, float("nan"), 3.0):
        losses.add(torch.tensor(value), 2)
    resumed = Losses.of(losses.state())
    resumed.add(torch.tensor(float("inf")), 2)
    resumed.look()
    assert resumed.not_finite is not None
    assert resumed.not_finite[0] == 2


def test_a_state_of_an_earlier_version_knows_nothing_of_it() -> None:
    state = Losses().state()
    del state["not_finite"]
    assert Losses.of(state).not_finite is None


def test_the_mean_is_the_same_wherever_it_was_saved() -> None:
    values = [(0.1 * n, n + 1) for n in range(7)]
    whole = Losses()
    parts = Losses()
    for value, samples in values:
        whole.add(torch.tensor(value), samples)
        parts.add(torch.tensor(value), samples)
        parts = Losses.of(parts.state())
    assert whole.look() == parts.look()
    assert parts.steps == len(values)
