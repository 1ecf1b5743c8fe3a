"""What EWC holds and what it does not, what it remembers, and what it refuses."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import EWC, CuberError, CuberWarning
from cuber.core.state import move
from cuber.networks import MLP
from tests.loops import learn, loss_fn, same_bits, train
from tests.methods.test_ewc import after, finished
from tests.methods.test_resume import momentum, same_memory, through_a_file
from tests.models import CASES, Case

CASE = CASES["mlp"]

# What is held, and by whom


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)


def branch(model: Any, batch: Any) -> Tensor:
    x, y, side = batch
    return loss_fn((model.left if side == "left" else model.right)(x), y)


def test_weights_that_a_task_does_not_reach_go_where_the_old_tasks_together_want_them() -> None:
    model = Branches()
    learner = EWC(model, lam=2.0, forward=branch)
    for side in ("left", "left", "right"):
        loader = [(torch.randn(8, 4), torch.randint(3, (8,)), side)]
        learner.begin_task(loader)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.5))
        optimizer.zero_grad()
        learner.loss(loader[0]).backward()
        before = model.left.weight.detach().clone()
        optimizer.step()
        if side == "left":
            learner.end_task(loader)
    offset = before - learner.center["left.weight"]
    assert torch.allclose(model.left.weight, before - 0.5 * 2.0 * learner.importance["left.weight"] * offset, atol=1e-6)
    assert not torch.equal(model.left.weight, before)
    assert "right.weight" not in learner.importance, "no old task depends on it"


def test_frozen_weights_and_heads_are_not_held() -> None:
    case = CASES["many heads"]
    model = case.model()
    model.backbone.layers[0].weight.requires_grad_(False)  # type: ignore[union-attr, index]
    learner = EWC(model, norm_parameters="shared")  # else a bias without its weight is each task's own
    learn(learner, case.loader(0))
    assert list(learner.importance) == ["backbone.layers.0.bias", "backbone.layers.1.weight", "backbone.layers.1.bias"]
    learner.begin_task(case.loader(1), loss_fn)
    model.zero_grad()
    frozen = model.backbone.layers[1].requires_grad_(False)  # type: ignore[union-attr, index]
    before = frozen.weight.clone()
    train(learner, learner.wrap(momentum(learner.model.parameters())), case.loader(1))
    assert frozen.weight.grad is None
    assert torch.equal(frozen.weight, before)


def test_each_of_two_optimizers_holds_what_it_trains() -> None:
    one, other = (EWC(CASE.model(), lam=5.0) for _ in range(2))
    for learner in (one, other):
        learn(learner, CASE.loader(0))
        learner.begin_task(CASE.loader(1), loss_fn)
    parameters = one.parameters()
    whole = [one.wrap(torch.optim.SGD(parameters, lr=0.1))]
    parameters = other.parameters()
    halves = [other.wrap(torch.optim.SGD(part, lr=0.1)) for part in (parameters[:3], parameters[3:])]
    for learner, optimizers in ((one, whole), (other, halves)):
        for x, y in CASE.loader(1) * 2:
            learner.model.zero_grad()
            loss_fn(learner.model(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
    assert same_bits(one.model, other.model)


def test_sparse_gradients_are_held_as_any_others_are() -> None:
    models = []
    for sparse in (True, False):
        build = lambda s=sparse: nn.Sequential(nn.Embedding(7, 8, sparse=s), nn.Flatten(), nn.Linear(40, 3))  # noqa: E731
        case = Case("words", build, (5,), vocabulary=7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one sample at a time
            models.append(after(EWC, case, lambda p: torch.optim.SGD(p, lr=0.1), lam=20.0).model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.needs_dtype(torch.bfloat16)
def test_half_precision_is_held_in_full() -> None:
    learner = EWC(CASE.model(dtype=torch.bfloat16), lam=5.0)
    for task in range(2):
        learn(learner, CASE.loader(task, dtype=torch.bfloat16))
    assert {values.dtype for values in learner.importance.values()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in learner.parameters()} == {torch.bfloat16}  # type: ignore[union-attr]


# Samples


def test_only_so_many_samples_are_looked_at() -> None:
    few, same = (
        finished(EWC(CASE.model(dtype=torch.float64), samples=samples), CASE.loader(0, total, 8, torch.float64))
        for samples, total in ((13, 24), (99, 13))
    )
    first = CASE.loader(0, 24, 13, torch.float64)[:1]
    only = finished(EWC(CASE.model(dtype=torch.float64)), first)
    assert all(torch.allclose(few.importance[name], only.importance[name], rtol=1e-10) for name in few.importance)
    assert not torch.allclose(same.importance["layers.0.weight"], few.importance["layers.0.weight"], rtol=1e-3)


def test_a_loader_that_does_not_shuffle_is_warned_of() -> None:
    x, y = CASE.inputs(0, 20), torch.zeros(20, dtype=torch.long)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=5)
    learner = EWC(CASE.model(), samples=10)
    learner.begin_task(loader, loss_fn)
    learner.wrap(momentum(learner.parameters()))
    with pytest.warns(CuberWarning, match="only the first 10 of 20 samples") as told:
        learner.end_task(loader)
    assert told[0].filename == __file__


def test_weights_that_are_not_finite_are_not_remembered() -> None:
    learner = EWC(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    learner.wrap(momentum(learner.parameters()))
    with torch.no_grad():
        learner.model.layers[0].bias[0] = float("nan")  # type: ignore[union-attr, index]
    with pytest.raises(CuberError, match=r"task 0: the gradients for 'layers\.0\.weight' are not finite"):
        learner.end_task(CASE.loader(0))
    assert learner.importance == {}
    assert learner.tasks == 0


# What is remembered


@pytest.mark.parametrize("settings", [{}, {"anchors": "last", "gamma": 0.5, "labels": "model"}], ids=["each", "online"])
def test_a_resumption_in_the_middle_of_a_task_gives_the_same_bits(settings: dict[str, Any]) -> None:
    case = CASES["residual block"]
    learner = after(EWC, case, tasks=2, **settings)
    learner.begin_task(case.loader(2), loss_fn)
    optimizer = learner.wrap(momentum(learner.parameters()))
    train(learner, optimizer, case.loader(2))
    model = case.model(seed=99)
    model.load_state_dict(through_a_file(learner.model.state_dict()))
    twin = EWC(model, **settings)
    kept = through_a_file(learner.state_dict())
    untouched = copy.deepcopy(kept)
    twin.load_state_dict(kept)
    twin.resume_task(loss_fn)
    twins_optimizer = twin.wrap(momentum(twin.parameters()))
    twins_optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    for each, its_optimizer in ((learner, optimizer), (twin, twins_optimizer)):
        train(each, its_optimizer, case.loader(2), epochs=2)
        each.end_task(case.loader(2))
        learn(each, case.loader(3), momentum)
    assert same_bits(learner.model, twin.model)
    assert same_memory(learner, twin)
    for key in ("importance", "center"):
        before, after_loading = untouched["remembered"][key], kept["remembered"][key]
        assert all(torch.equal(after_loading[name], before[name]) for name in before)


@pytest.mark.parametrize("anchors", ["each", "last"])
def test_memory_is_counted_and_does_not_grow_with_the_tasks(anchors: str) -> None:
    parameters = sum(parameter.nbytes for parameter in CASE.model().parameters())
    for tasks in (1, 4):
        sizes = after(EWC, tasks=tasks, anchors=anchors).memory_bytes()
        assert sizes["fisher"] == sizes["anchors"] == parameters
    assert EWC(CASE.model()).memory_bytes()["fisher"] == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lam": -1}, "lam must be a number of at least 0, not -1"),
        ({"gamma": 1.5}, "gamma must be a number from 0 to 1, not 1.5"),
        ({"anchors": "all"}, "anchors must be one of each, last, not 'all'"),
        ({"labels": "drawn"}, "labels must be one of true, model, not 'drawn'"),
        ({"samples": 0}, "samples must be a whole number of at least 1, not 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], sentence: str) -> None:
    model = MLP(8, 4, 3)
    with pytest.raises(CuberError, match=f"^EWC: {sentence}$"):
        EWC(model, **settings)
    EWC(model)


def test_springs_follow_a_model_that_is_moved_between_tasks() -> None:
    learner = after(EWC, tasks=1)
    learner.model.to("meta")  # the one other device that every machine has; nothing can be computed on it
    move(learner)
    for parameter in learner.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner.before_step(torch.optim.SGD(learner.parameters(), lr=0.1))
    assert {parameter.grad.device.type for parameter in learner.model.parameters()} == {"meta"}
