"""What somebody freezes or thaws himself, and when: right, or a sentence, and never wrong in silence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from cuber import CUBER, EWC, GPM, OWM, TRGP, CuberError
from tests.loops import OPTIMIZERS, Watch, gradients, learn, logits, loss_fn, same_bits, train

FIRST = "first"


def network(*frozen: str) -> nn.Module:
    """Two layers, of whose parameters some are frozen."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module(FIRST, nn.Linear(8, 6))
    model.add_module("relu", nn.ReLU())
    model.add_module("last", nn.Linear(6, 3))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen) if frozen else True)
    return model


def batches(task: int) -> list[Any]:
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(24, 3, generator=generator) @ torch.randn(3, 8, generator=generator)
    return [(x[part], torch.randint(0, 3, (8,), generator=generator)) for part in torch.arange(24).split(8)]


def learned(kind: type = TRGP, tasks: int = 2, **settings: Any) -> Any:
    learner = kind(network(), **settings)
    for task in range(tasks):
        learn(learner, batches(task), epochs=3)
    return learner


@pytest.mark.parametrize("kind", [GPM, TRGP, CUBER, OWM])
@pytest.mark.parametrize(
    ("frozen", "sentence"),
    [
        (FIRST, "'first' is protected in this state but frozen here"),
        (f"{FIRST}.bias", "bias of layer 'first' is trained in this state and frozen here"),
    ],
)
def test_a_state_is_not_loaded_where_what_it_protects_is_frozen(kind: type, frozen: str, sentence: str) -> None:
    learner = learned(kind)
    model = network(frozen)
    model.load_state_dict(learner.model.state_dict())
    other = kind(model)
    with pytest.raises(CuberError, match=sentence):
        other.load_state_dict(learner.state_dict())
    assert other.tasks == 0


def test_a_task_with_a_frozen_layer_goes_on_elsewhere() -> None:
    learner = learned(TRGP, eps1=0.0)
    learner.model.first.requires_grad_(False)
    learner.begin_task(batches(2), loss_fn)
    model = network()
    model.load_state_dict(learner.model.state_dict())
    other = TRGP(model, eps1=0.0)
    other.load_state_dict(learner.state_dict())
    other.resume_task(loss_fn)
    model.first.requires_grad_(False)
    for one in (learner, other):
        train(one, one.wrap(torch.optim.SGD(one.parameters(), lr=0.1)), batches(2))
        one.end_task(batches(2))
    assert same_bits(learner.model, model)
    for task in range(3):
        assert torch.equal(logits(learner, task, batches(task)[0][0]), logits(other, task, batches(task)[0][0]))


@pytest.mark.parametrize("kind", [GPM, CUBER])
@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_part_of_a_layer_is_not_frozen_in_mid_task(kind: type, part: str) -> None:
    learner = learned(kind, 1)
    learner.begin_task(batches(1), loss_fn)
    optimizer = learner.wrap(torch.optim.Adam(learner.parameters(), lr=0.01))
    watch, before = Watch.over(learner), copy.deepcopy(learner.model.state_dict())
    getattr(learner.model.first, part).requires_grad_(False)
    with pytest.raises(CuberError, match=f"the {part} of layer 'first' was frozen in the middle of a task"):
        train(learner, optimizer, batches(1))
    assert all(torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())
    getattr(learner.model.first, part).requires_grad_(True)
    train(learner, optimizer, batches(1), epochs=3)
    if kind is GPM:
        watch.held()


@pytest.mark.parametrize("make", [OPTIMIZERS["SGD"], OPTIMIZERS["Adam"], OPTIMIZERS["AdamW"]])
def test_a_layer_that_is_frozen_in_mid_task_is_protected_from_what_moves_it_still(make: Any) -> None:
    learner = learned(GPM, 1)
    learner.begin_task(batches(1), loss_fn)
    optimizer = learner.wrap(make(learner.parameters()))
    train(learner, optimizer, batches(1))
    watch = Watch.over(learner)
    learner.model.first.requires_grad_(False)  # and the gradients of the last step are still there
    for x, y in batches(1) * 3:
        loss_fn(learner.model(x), y).backward()
        optimizer.step()
    assert watch.moved() > 1e-3
    watch.held()


def test_what_a_task_trained_is_not_frozen_when_its_gradient_is_asked_for() -> None:
    learner = CUBER(network())
    learner.begin_task(batches(0), loss_fn)
    train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1)), batches(0))
    learner.model.requires_grad_(False)
    with pytest.raises(CuberError, match="end_task: layer 'first' was trained in this task and is frozen now"):
        learner.end_task(batches(0))
    assert learner.task == 0
    learner.model.requires_grad_(True)
    learner.end_task(batches(0))
    assert gradients(learner, 0).keys() == {"first", "last"}


def test_what_ewc_has_trained_is_not_frozen_when_its_fisher_is_asked_for() -> None:
    learner = EWC(network())
    learner.begin_task(batches(0), loss_fn)
    train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1)), batches(0))
    learner.model.first.requires_grad_(False)
    with pytest.raises(CuberError, match=r"end_task: 'first\.weight' was trained in this task and is frozen now"):
        learner.end_task(batches(0))
    learner.model.requires_grad_(True)
    learner.end_task(batches(0))
    assert "first.weight" in learner.importance


def test_what_was_frozen_all_the_time_may_stay_so() -> None:
    learner = learned(CUBER, 1)
    learner.model.first.requires_grad_(False)
    learn(learner, batches(1))
    assert gradients(learner, 1).keys() == {"last"}
