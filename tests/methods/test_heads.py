"""Heads belong to their tasks: chosen for you, never projected, left alone afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, EWC, GPM, TRGP, CuberError, FineTune, MultiHead
from cuber.methods import METHODS
from cuber.networks import MLP
from tests.loops import OPTIMIZERS, learn, logits, loss_fn, train
from tests.models import CASES

CASE = CASES["many heads"]
SOME = [FineTune, EWC, GPM, TRGP, CUBER]


def heads(model: Any) -> list[list[Tensor]]:
    return [[p.detach().clone() for p in head.parameters()] for head in model.heads]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("kind", "make"), [*((kind, "AdamW") for kind in SOME[:-1]), *((CUBER, name) for name in OPTIMIZERS)]
)
def test_only_the_present_task_s_head_is_trained(kind: type, make: str) -> None:
    learner = kind(CASE.model())
    for task in range(3):
        before = heads(learner.model)
        learn(learner, CASE.loader(task), OPTIMIZERS[make])
        after = heads(learner.model)
        assert [same(*pair) for pair in zip(before, after, strict=True)] == [other != task for other in range(4)]


def everything(make: str, model: nn.Module) -> Any:
    return {
        "momentum and decay": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1),
        "AdamW": lambda: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5),
        "RMSprop": lambda: torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1),
        "LBFGS": lambda: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4),
    }[make]()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("make", ["momentum and decay", "AdamW", "RMSprop", "LBFGS"])
def test_old_heads_stand_still_in_one_optimizer_of_everything_for_all_tasks(make: str, set_to_none: bool) -> None:
    model = CASE.model()
    learner = GPM(model)
    optimizer = everything(make, model)
    for task in range(3):
        loader = CASE.loader(task)
        learner.begin_task(loader, loss_fn)
        learner.wrap(optimizer)
        before = heads(model)
        for x, y in loader:

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad(set_to_none=set_to_none)
                loss = loss_fn(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
        learner.end_task(loader)
        assert [same(*pair) for pair in zip(before, heads(model), strict=True)] == [other != task for other in range(4)]


def test_each_task_is_answered_by_its_own_head() -> None:
    torch.manual_seed(0)
    model = MultiHead(MLP(8, 6, last_relu=True), 6, [2, 3, 4])
    learner = GPM(model)
    for task, classes in enumerate((2, 3, 4)):
        learn(learner, [(x, y % classes) for x, y in CASE.loader(task)])
    x = CASE.inputs(0, 5)
    assert [logits(learner, task, x).shape[1] for task in range(3)] == [2, 3, 4]
    assert model(x).shape[1] == 4
    with torch.no_grad(), learner.as_task(1):
        assert learner.model(x).shape[1] == 3
        with learner.as_task(None):
            assert model(x).shape[1] == 3, "the bare weights keep the head"
    assert model.task == 2


def test_a_task_beyond_the_last_head_is_refused_until_a_head_is_added() -> None:
    model = MultiHead(MLP(8, 6, last_relu=True), 6, [3])
    learner = CUBER(model)
    learn(learner, CASE.loader(0))
    with pytest.raises(CuberError, match=r"not for task 1.*add_head"):
        learner.begin_task(CASE.loader(1), loss_fn)
    assert (learner.task, learner.tasks, model.task) == (None, 1, 0)
    model.add_head(3)
    learn(learner, CASE.loader(1))
    assert model.task == 1


def test_heads_are_neither_protected_nor_uncovered() -> None:
    learner = CUBER(CASE.model(), uncovered="error")
    assert list(learner.layers) == ["backbone.layers.0", "backbone.layers.1"]
    assert not learner.uncovered_parameters


def test_a_multi_head_may_lie_anywhere_in_the_model() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), MultiHead(nn.Linear(8, 6), 6, [3, 3, 3]), nn.Identity())
    learner = GPM(model)
    for task in range(3):
        learn(learner, CASE.loader(task))
    assert model[2].task == 2
    assert list(learner.memory) == ["0", "2.backbone"]


def test_a_single_shared_head_is_an_ordinary_protected_layer() -> None:
    learner = GPM(CASES["mlp"].model())
    assert "layers.2" in learner.layers


def test_old_tasks_keep_their_answers_where_their_inputs_are_held() -> None:
    changed = {}
    for kind in (FineTune, GPM):
        learner = kind(CASE.model(), **({"threshold": 1.0} if kind is GPM else {}))
        old = CASE.loader(0, samples=3)
        learn(learner, old, epochs=3)
        before = logits(learner, 0, old[0][0])
        for task in (1, 2):
            learn(learner, CASE.loader(task), OPTIMIZERS["AdamW"], epochs=5)
        changed[kind] = float((logits(learner, 0, old[0][0]) - before).norm() / before.norm())
    assert changed[GPM] < 1e-5
    assert changed[FineTune] > 1e-2


def test_training_the_second_task_before_it_begins_is_not_possible_by_accident() -> None:
    learner = GPM(CASE.model())
    learn(learner, CASE.loader(0))
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.1)
    with pytest.raises(CuberError, match="begin_task"):
        learner.wrap(optimizer)
    learner.begin_task(CASE.loader(1), loss_fn)
    train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1)), CASE.loader(1))
    assert not any(p.requires_grad for p in learner.model.heads[0].parameters())


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_a_head_that_tasks_share_trains_with_the_first_of_them(kind: type) -> None:
    model: Any = MultiHead(MLP(8, 6, last_relu=True), 6, [3, 3, 3])
    model.heads[1] = model.heads[0]
    learner = kind(model)
    batches = CASES["many heads"].loader(0)
    if learner.joint:
        batches = [(x, y, torch.zeros_like(y)) for x, y in batches]
    learner.begin_task(batches, loss_fn)
    assert model.heads[0].weight.requires_grad
    assert kind.joint or not model.heads[2].weight.requires_grad
