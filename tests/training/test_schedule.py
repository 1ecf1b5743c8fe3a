"""Training options, and the learning rate with patience (algorithm.md, section 6)."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import cuber
from cuber import CuberError
from cuber.experiments import Experiment
from cuber.experiments.grid import KEYS
from cuber.training import TrainingConfig
from cuber.training.early_stopping import EarlyStopping


def stopping(lr, patience, factor, floor):
    training = TrainingConfig(epochs=99, lr=lr, patience=patience, factor=factor, floor=floor)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3 * lr)
    return EarlyStopping(SimpleNamespace(snapshot=mock.Mock), optimizer, training)


def test_by_hand():
    schedule = stopping(lr=0.1, patience=2, factor=10, floor=0.005)
    seen = [
        (schedule.observe(epoch, loss), round(schedule.lr, 6), schedule.stopped)
        for epoch, loss in enumerate((3, 2, 4, 1, 1, 1, 2, 2))
    ]
    assert seen == [
        (True, 0.1, False),
        (True, 0.1, False),
        (False, 0.1, False),
        (True, 0.1, False),  # resets the patience
        (False, 0.1, False),  # as good as the best is not better
        (False, 0.01, False),
        (False, 0.01, False),
        (False, 0.001, True),
    ]
    assert schedule.best_epoch == 3
    assert schedule.optimizer.param_groups[0]["lr"] == pytest.approx(0.003)


def test_nan_is_never_the_best():
    schedule = stopping(lr=1.0, patience=1, factor=2, floor=0.3)
    assert not schedule.observe(0, math.nan)
    assert schedule.lr == 0.5
    assert schedule.observe(1, 5.0)


@given(
    st.lists(st.floats(0, 10) | st.just(math.nan), max_size=60),
    st.integers(1, 5),
    st.floats(1.5, 10),
    st.floats(1e-4, 0.5),
)
def test_laws(losses, patience, factor, floor):
    schedule = stopping(1.0, patience, factor, floor)
    since_best, divisions = 0, 0
    for count, loss in enumerate(losses, start=1):
        better = loss < min([other for other in losses[: count - 1] if other == other], default=math.inf)
        assert schedule.observe(count - 1, loss) == better
        since_best = 0 if better else since_best + 1
        divisions += since_best > 0 and since_best % patience == 0
        assert schedule.lr == pytest.approx(factor**-divisions)
        assert schedule.stopped == (schedule.lr < floor)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"batch_size": -3}, "batch_size must be a whole number of at least 1, not -3"),
        ({"evaluation_batch_size": 0}, "evaluation_batch_size must be"),
        ({"patience": -1}, "patience must be a whole number of at least 0, not -1"),
        ({"epochs": None}, "epochs must be a whole number of at least 1, not None"),
        ({"lr": 0}, "lr must be a number above 0 and at most .*, not 0"),
        ({"lr": math.nan}, "lr must be a number above 0 and at most .*, not nan"),
        ({"lr": math.inf}, "lr must be a number above 0 and at most .*, not inf"),
        ({"lr": "fast"}, "lr must be a number above 0 and at most .*, not 'fast'"),
        ({"factor": 1.0}, "factor must be a number above 1, not 1.0"),
        ({"floor": 0}, "floor must be a number above 0, not 0"),
        ({"precision": "fp16"}, r"no precision 'fp16'; did you mean 'bf16'\? \(known: float32, bf16, tf32\)"),
        ({"precision": ["bf16"]}, "there is no precision"),
        ({"compile": 1}, "compile must be true or false, not 1"),
    ],
)
def test_settings_that_make_no_sense(wrong, sentence):
    with pytest.raises(CuberError, match=sentence):
        TrainingConfig(**{"epochs": 1, "lr": 0.1, **wrong})


def test_no_patience_is_no_early_stopping():
    assert TrainingConfig(epochs=1, lr=0.1, patience=0) == TrainingConfig(epochs=1, lr=0.1, patience=None)


def test_every_interface_has_every_option():
    """The command line is tested in tests/test_cli.py."""
    names = {field.name for field in fields(TrainingConfig)}
    assert names <= {field.name for field in fields(Experiment)}
    assert names <= set(KEYS)
    parameters = inspect.signature(cuber.learn).parameters
    for field in fields(TrainingConfig):
        default = parameters[field.name].default
        assert default == field.default or (field.name in ("epochs", "lr") and default is inspect.Parameter.empty)
        assert f"{field.name}: {field.metadata['setting'].help}" in cuber.learn.__doc__
    assert "**training" not in cuber.learn.__doc__


def test_arguments_that_are_missing_or_unknown_are_those_of_learn():
    with pytest.raises(TypeError, match=r"^learn\(\) missing 1 required keyword-only argument: 'lr'"):
        cuber.learn(None, None, epochs=1)
    with pytest.raises(TypeError, match=r"^there is no argument of cuber\.learn 'momentum' \(known: method, stream, "):
        cuber.learn(None, None, epochs=1, lr=0.1, momentum=0.9)
    with pytest.raises(CuberError, match=r"no argument of cuber\.learn 'epoch'; did you mean 'epochs'\?"):
        cuber.learn(None, None, epoch=3, lr=0.1)
