"""Verbs at the wrong moment are answered with one sentence, and the right one afterwards still works."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch

from cuber import CUBER, EWC, GPM, TRGP, CuberError, FineTune
from tests.loops import learn, loss_fn, same_bits, sgd, train
from tests.models import CASES

CASE = CASES["mlp"]
methods = pytest.mark.parametrize("kind", [FineTune, EWC, GPM, TRGP, CUBER])


@methods
@pytest.mark.parametrize("tasks", [0, 1], ids=["at first", "after a task"])
def test_verbs_before_begin_task_say_so(kind: type, tasks: int) -> None:
    learner = kind(CASE.model())
    for task in range(tasks):
        learn(learner, CASE.loader(task))
    for verb, call in {
        "wrap": lambda: learner.wrap(sgd(learner.parameters())),
        "end_epoch": learner.end_epoch,
        "end_task": lambda: learner.end_task(CASE.loader(0)),
        "resume_task": lambda: learner.resume_task(loss_fn),
    }.items():
        with pytest.raises(CuberError, match=rf"^{verb} before begin_task: call begin_task\(loader, loss_fn\) first$"):
            call()
    learn(learner, CASE.loader(2))
    assert learner.tasks == tasks + 1


@methods
def test_begin_task_twice_says_so_and_the_first_goes_on(kind: type) -> None:
    learner = kind(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    with pytest.raises(CuberError, match="task 0 has begun already: call end_task"):
        learner.begin_task(CASE.loader(1), loss_fn)
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(0))
    learner.end_task(CASE.loader(0))
    assert learner.tasks == 1


@methods
def test_end_task_without_a_wrapped_optimizer_says_that_nothing_was_protected(kind: type) -> None:
    learner = kind(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    with pytest.raises(CuberError, match=r"no optimizer was wrapped in this task.*learner\.wrap\(optimizer\)"):
        learner.end_task(CASE.loader(0))
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(0))
    learner.end_task(CASE.loader(0))


def test_an_optimizer_must_be_wrapped_anew_for_every_task() -> None:
    learner = GPM(CASE.model())
    optimizer = sgd(learner.parameters())
    for task in range(2):
        learner.begin_task(CASE.loader(task), loss_fn)
        if task == 0:
            train(learner, learner.wrap(optimizer), CASE.loader(task))
            learner.end_task(CASE.loader(task))
    with pytest.raises(CuberError, match="no optimizer was wrapped in this task"):
        learner.end_task(CASE.loader(1))


@methods
@pytest.mark.parametrize(
    ("tasks", "asked", "learned"),
    [(0, 0, "none has"), (1, 1, "only task 0 has"), (3, -1, "tasks 0 to 2 have"), (3, 3, "")],
)
def test_as_task_of_a_task_nobody_learnt_says_which_were(kind: type, tasks: int, asked: int, learned: str) -> None:
    learner = kind(CASE.model())
    for task in range(tasks):
        learn(learner, CASE.loader(task))
    with (
        pytest.raises(CuberError, match=rf"as_task\({asked}\): that task has not been learned \(.*{learned}"),
        learner.as_task(asked),
    ):
        pass
    learn(learner, CASE.loader(tasks))


def test_the_task_being_learnt_can_be_looked_at() -> None:
    learner = TRGP(CASE.model(), eps1=0.0)
    learn(learner, CASE.loader(0))
    learner.begin_task(CASE.loader(1), loss_fn)
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(1))
    x = CASE.inputs(0, 3)
    with torch.no_grad(), learner.as_task(1) as model:
        assert torch.equal(model(x), learner.model(x))
        shown = model(x)
    with torch.no_grad(), learner.as_task(None) as model:
        assert not torch.equal(model(x), shown)


@methods
def test_a_second_learner_on_one_model_or_on_a_part_of_it_is_refused_until_the_first_lets_go(kind: type) -> None:
    model: Any = CASE.model()
    learner = kind(model)
    for part in (model, model.layers[1], torch.nn.Sequential(model)):
        with pytest.raises(CuberError, match=r"has a learner already: call its detach\(\).*copy\.deepcopy"):
            GPM(part)
    learn(learner, CASE.loader(0))
    kind(copy.deepcopy(model)).detach()
    learner.detach()
    learn(kind(model), CASE.loader(1))


def test_a_learner_that_nobody_holds_any_longer_does_not_hold_the_model() -> None:
    model = CASE.model()
    learner = GPM(model)
    learn(learner, CASE.loader(0))
    del learner
    gc.collect()
    other = CUBER(model)
    learn(other, CASE.loader(1))
    assert other.memory["layers.0"].tasks == 1


def test_what_a_forgotten_learner_had_frozen_is_trained_by_the_next() -> None:
    case = CASES["many heads"]
    model = case.model()
    learner = GPM(model)
    for task in range(2):
        learn(learner, case.loader(task))
    del learner
    gc.collect()
    other = GPM(model)
    other.begin_task(case.loader(0), loss_fn)
    trained = {name for name, _ in other.named_parameters()}
    assert "heads.0.weight" in trained
    assert "heads.1.weight" not in trained


def test_detaching_twice_is_detaching_once() -> None:
    learner = CUBER(CASE.model())
    learner.detach()
    learner.detach()
    assert not any("forward" in module.__dict__ for module in learner.model.modules())
    learn(other := GPM(learner.model), CASE.loader(0))
    assert other.tasks == 1


def test_a_detached_learner_says_that_it_is_detached() -> None:
    learner = CUBER(CASE.model())
    learner.detach()
    with pytest.raises(CuberError) as error:
        learner.begin_task(CASE.loader(0), loss_fn)
    assert "detach" in str(error.value)


@methods
def test_begin_task_without_any_loss_says_what_it_needs(kind: type) -> None:
    learner = kind(CASE.model())
    with pytest.raises(CuberError, match=r"begin_task needs loss_fn\(output, target\), or the learner a forward="):
        learner.begin_task(CASE.loader(0))
    learn(learner, CASE.loader(0))


@methods
def test_a_failed_beginning_changes_no_bit_of_model_or_memory(kind: type) -> None:
    case = CASES["residual block"]
    learner = kind(case.model())
    twin = kind(case.model())
    for each in (learner, twin):
        learn(each, case.loader(0))
        each.model(case.inputs(1, 8))  # the user may have gone on, and the statistics with them
    trained = [p.requires_grad for p in learner.model.parameters()]
    for bad in (
        [],
        [(torch.randn(4, 3, 5, 5), torch.zeros(4).long())],
        [(torch.randn(4, 2, 5, 5), torch.full((4,), 9))],
    ):
        with pytest.raises(CuberError):
            learner.begin_task(bad, loss_fn)
        assert learner.task is None
        assert same_bits(learner.model, twin.model)
        assert learner.model.training
    assert sum(trained) <= sum(p.requires_grad for p in learner.model.parameters())
    for each in (learner, twin):
        learn(each, case.loader(1))
    assert same_bits(learner.model, twin.model)


@pytest.mark.parametrize("kind", [GPM, TRGP, CUBER])
def test_a_beginning_that_is_broken_off_at_its_last_moment_leaves_layers_as_they_were(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, twin = (kind(CASE.model(), threshold=0.8) for _ in range(2))
    for each in (learner, twin):
        learn(each, CASE.loader(0, samples=4))

    def interrupted() -> None:
        kind.on_task_begin(learner)
        raise KeyboardInterrupt

    monkeypatch.setattr(learner, "on_task_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner.begin_task(CASE.loader(1), loss_fn)
    monkeypatch.undo()
    assert all(layer.constraint is None and layer.scaling is None for layer in learner.layers.values())
    for each in (learner, twin):
        learn(each, CASE.loader(1))
    assert same_bits(learner.model, twin.model)
