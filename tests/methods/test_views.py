"""Views inside views: each shows what it would show alone, and leaves what it found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cuber import GPM, CuberError
from tests.loops import OPTIMIZERS, learn, logits, loss_fn, train
from tests.models import CASES

HEADS, MLP = CASES["many heads"], CASES["mlp"]


def look_at_a_task(learner: Any) -> None:
    with learner.as_task(2):
        pass


VERBS: dict[str, Callable[[Any], object]] = {
    "as_task": look_at_a_task,
    "infer_task": lambda learner: learner.infer_task(HEADS.inputs(0, 4)),
    "predict": lambda learner: learner.predict(HEADS.inputs(0, 4)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_bare_weights_keep_their_head_after_a_view_of_a_task(verb: str) -> None:
    learner: Any = GPM(HEADS.model())
    for task in range(3):
        learn(learner, HEADS.loader(task))
    x = HEADS.inputs(1, 4)
    with torch.no_grad(), learner.as_task(1) as model, learner.as_task(None):
        before = model(x)
        VERBS[verb](learner)
        assert model.task == 1
        assert torch.equal(model(x), before)
    assert learner.model.task == 2


@pytest.mark.parametrize("outer", [0, None, "infer"])
@pytest.mark.parametrize("ema", [0.0, 1.0])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_the_present_task_inside_a_view_of_an_old_one_answers_as_outside(norm: Any, ema: float, outer: Any) -> None:
    torch.manual_seed(0)
    learner = GPM(nn.Sequential(nn.Linear(8, 12), norm(12), nn.ReLU(), nn.Linear(12, 3)), ema=ema)
    learn(learner, MLP.loader(0))
    loader = [(3 * x + 2, y) for x, y in MLP.loader(1)]
    learner.begin_task(loader, loss_fn)
    train(learner, learner.wrap(OPTIMIZERS["AdamW"](learner.parameters())), loader, epochs=3)
    learner.model.eval()
    x = MLP.inputs(1, 4)
    before, bare, old = logits(learner, 1, x), learner.model(x), logits(learner, 0, x)
    with learner.as_task(outer):
        assert torch.equal(logits(learner, 1, x), before)
        with learner.as_task(0):
            assert torch.equal(logits(learner, 1, x), before)
            assert torch.equal(learner.model(x), old)
            assert torch.equal(logits(learner, None, x), before), "GPM's bare weights are those of the present task"
    assert torch.equal(learner.model(x), bare)
    assert not torch.allclose(before, old, atol=1e-2)


@pytest.mark.parametrize("present", [True, False])
def test_a_snapshot_is_of_the_present_task_alone(present: bool) -> None:
    learner = GPM(nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)))
    learn(learner, MLP.loader(0))
    learner.begin_task(MLP.loader(1), loss_fn)
    optimizer, best, x = learner.wrap(OPTIMIZERS["SGD"](learner.parameters())), learner.snapshot(), MLP.inputs(1, 4)
    train(learner, optimizer, MLP.loader(1))
    with learner.as_task(1 if present else 0), learner.as_task(1 if present else None):
        best.take()
    expected = logits(learner, 1, x)
    train(learner, optimizer, MLP.loader(1))
    for verb in (best.take, learner.snapshot):
        with learner.as_task(0), pytest.raises(CuberError, match=r"^taking a snapshot inside as_task"):
            verb()
    with learner.as_task(1), pytest.raises(CuberError, match=r"^restoring a snapshot inside as_task"):
        best.restore()
    assert not torch.equal(logits(learner, 1, x), expected)
    best.restore()
    assert torch.equal(logits(learner, 1, x), expected)


@pytest.mark.parametrize("task", [0, 1, None, "infer"])
def test_what_is_refused_in_a_view_is_explained_by_what_holds_in_every_view(task: Any) -> None:
    learner = GPM(nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)))
    learn(learner, MLP.loader(0))
    learner.begin_task(MLP.loader(1), loss_fn)
    said = "^state_dict inside as_task, where the statistics .* may be those of another task: leave the block first$"
    with learner.as_task(task), pytest.raises(CuberError, match=said):
        learner.state_dict()
