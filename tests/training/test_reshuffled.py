"""How much the order of the test samples matters, recorded where it does."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch
from torch import nn

import cuber
from cuber.layers import normalized_by_batch
from cuber.training import Stopped, derive
from cuber.training.evaluation import evaluate
from cuber.training.loop import ORDERS
from tests.training import small

QUICK = {"epochs": 2, "lr": 0.1, "batch_size": 4, "evaluation_batch_size": 7}


def learnt(norm_statistics: str, seed: int = 0, directory=None):
    model = small.model_with_norm(2)
    learner = cuber.GPM(model, norm_statistics=norm_statistics)
    return learner, cuber.learn(learner, small.stream(2), seed=seed, directory=directory, **QUICK)


def test_where_batches_are_normalized_by_themselves_other_orders_are_tried():
    learner, result = learnt("batch", seed=3)
    assert len(result.reshuffled) == ORDERS
    assert all(len(row) == 2 for row in result.reshuffled)
    assert len({tuple(row) for row in result.reshuffled}) > 1
    stream = small.stream(2)
    with learner.as_task(1) as model:
        order = torch.randperm(30, generator=torch.Generator().manual_seed(derive(3, "test order", 4, 1)))
        part = stream[1].test.subset(order)
        assert result.reshuffled[4][1] == evaluate(model, part, 7).accuracy
    assert json.loads(json.dumps(result.to_dict()))["reshuffled"] == result.reshuffled


def test_the_same_seed_tries_the_same_orders():
    assert learnt("batch")[1].reshuffled == learnt("batch")[1].reshuffled


def test_a_run_stopped_while_orders_are_tried_goes_on_to_the_same_result(tmp_path, monkeypatch):
    def interrupted(*arguments, order=None, **options):
        if order is not None:
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*arguments, order=order, **options)

    with monkeypatch.context() as patch:
        patch.setattr("cuber.training.loop.evaluate", interrupted)
        with pytest.raises(Stopped, match="in the tests after task 1"):
            learnt("batch", directory=tmp_path / "run")
    resumed = learnt("batch", directory=tmp_path / "run")[1]
    whole = learnt("batch")[1]
    assert (resumed.reshuffled, resumed.accuracy) == (whole.reshuffled, whole.accuracy)


def test_where_the_order_cannot_matter_nothing_is_recorded():
    assert learnt("task")[1].reshuffled == []
    assert cuber.learn(cuber.GPM(small.model(2)), small.stream(2), **QUICK).reshuffled == []


def test_trying_orders_leaves_the_model_as_it_was():
    learner, result = learnt("batch")
    for task, part in enumerate(small.stream(2)):
        with learner.as_task(task) as model:
            assert evaluate(model, part.test, 7).accuracy == result.accuracy[-1][task]


def test_evaluation_in_another_order_is_the_same_without_batch_statistics():
    model, part = small.model(1), small.stream(1)[0].test
    for order in (0, 1, 12345):
        assert evaluate(model, part, 7, order=order).accuracy == evaluate(model, part, 7).accuracy


@pytest.mark.parametrize(
    ("layer", "by_batch"),
    [
        (nn.BatchNorm1d(3), False),
        (nn.BatchNorm2d(3, track_running_stats=False), True),
        (nn.InstanceNorm1d(3), False),
        (nn.GroupNorm(1, 3), False),
        (nn.LayerNorm(3), False),
    ],
)
def test_which_layers_look_at_the_whole_batch(layer, by_batch):
    assert bool(normalized_by_batch(nn.Sequential(nn.Linear(3, 3), layer))) is by_batch
