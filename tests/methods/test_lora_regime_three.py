"""LoRA in regime 3: where old tasks may change, what holds them back, and who keeps the law of 1e-3 all the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cuber
from cuber.methods.adapted import shared
from tests.methods.lora import adamw, learn, loss_fn, tasks, train, vit
from tests.methods.test_lora import outputs_of
from tests.methods.test_regime_three import DIMENSION, OUTPUTS, STRENGTHS, step, task_on

pytest.importorskip("peft")
pytest.importorskip("transformers")

ALWAYS = {"eps1": 0.0, "eps2": -1.0}
"""Every old task that is selected is in regime 3."""


def linear(**settings: Any) -> cuber.LoRA:
    """Return a learner around one linear layer."""
    torch.manual_seed(0)
    defaults = {"rank": 4, "lam": 0.0, "keep": 1.0, "threshold": 1.0, **ALWAYS}
    return cuber.LoRA(nn.Sequential(nn.Linear(DIMENSION, OUTPUTS, bias=False)), **(defaults | settings))


def begin(learner: cuber.LoRA, loader: Any, lr: float = 0.1) -> torch.optim.Optimizer:
    learner.begin_task(loader, functional.mse_loss)
    return learner.wrap(torch.optim.AdamW(learner.parameters(), lr=lr, weight_decay=0.1))


def learn_linear(learner: cuber.LoRA, loader: Any, steps: int = 5) -> None:
    step(learner, begin(learner, loader), loader, steps)
    learner.end_epoch()
    learner.end_task(loader)


def shared_weight(learner: cuber.LoRA) -> Tensor:
    """Return the weight that serves all tasks."""
    with learner.as_task(None):
        return learner.weight("0")


def axes_of(change: Tensor) -> list[int]:
    return [axis for axis in range(DIMENSION) if change[:, axis].norm() > 1e-5]


def test_an_old_task_in_regime_three_changes_along_what_it_alone_reads() -> None:
    learner = linear(selected=1)
    learn_linear(learner, task_on(0, 1, 2))
    learn_linear(learner, task_on(2, 3))
    before = shared_weight(learner)
    learn_linear(learner, task_on(0, 1, 2, 5))
    regimes = learner.memory["0"].regimes[-1]
    assert {task: regime.number for task, regime in regimes.items()} == {0: 3, 1: 1}
    assert {0, 1, 5} <= set(axes_of(shared_weight(learner) - before)) <= {0, 1, 4, 5, 6, 7}  # not 2, which task 1 reads


def test_with_positive_correlation_an_old_task_improves_and_without_regime_three_it_stays() -> None:
    losses = {}
    for eps2 in (2.0, 0.0):
        learner, x = linear(eps2=eps2, lam=0.1), task_on(0, 1, 2)[0][0]
        y = x @ torch.randn(DIMENSION, OUTPUTS)
        learn_linear(learner, [(x, y)], steps=3)
        with torch.no_grad(), learner.as_task(0) as model:
            before = functional.mse_loss(model(x), y)
        learn_linear(learner, [(x, y + 0.01)], steps=3)
        with torch.no_grad(), learner.as_task(0) as model:
            losses[eps2] = float(functional.mse_loss(model(x), y) / before)
    assert losses[2.0] == pytest.approx(1.0, abs=1e-3)
    assert losses[0.0] < 0.9


def test_tasks_that_are_not_in_regime_three_keep_the_law_of_1e_3() -> None:
    learner = cuber.LoRA(vit(), rank=4, eps1=0.0, eps2=1.0, selected=1, lam=0.0, threshold=0.9)
    old = []
    for number, data in enumerate(tasks()):
        if number == 2:
            learner.eps2 = -1.0  # one of the two old tasks in each layer
        learn(learner, data)
        old.append(outputs_of(learner, torch.cat([x for x, _ in data]), number))
    found: dict[int, list[float]] = {1: [], 3: []}
    for task, layers in enumerate(old[:-1]):
        with learner.as_task(task):
            for name, (x, before) in layers.items():
                change = (x @ learner.weight(name).mT - before).norm() / before.norm()
                found[learner.memory[name].regimes[2][task].number].append(float(change))
    assert len(found[1]) == len(found[3]) == len(learner.layers)
    assert 0 < max(found[1]) <= 1e-3
    assert any(name in learner.ranks[shared(2)] and learner.ranks[shared(2)][name] > 4 for name in learner.layers)


def test_the_penalty_is_the_change_of_the_old_tasks_outputs() -> None:
    old = task_on(0, 1, 2)
    learner = linear(lam=0.7, scale=2.0)
    learn_linear(learner, old)
    start = shared_weight(learner)
    learner.begin_task(task_on(0, 1, 5), functional.mse_loss)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.01))
    step(learner, optimizer, task_on(0, 1, 5), 3)
    up = learner.adapters.up(shared(1), "0")
    rows = learner.adapters.down(shared(1), "0")

    trained = up.detach().clone().requires_grad_()
    change = 2.0 * trained @ rows
    x = old[0][0]
    expected = 0.7 * (x @ change.mT).square().sum() / (4 * STRENGTHS[:3].square().max())
    (gradient,) = torch.autograd.grad(expected, trained)
    assert torch.allclose(shared_weight(learner) - start, change.detach(), atol=1e-6)

    up.grad = torch.zeros_like(up)
    learner.before_step(optimizer)
    assert torch.allclose(up.grad, gradient, atol=1e-6)
    assert up.grad.norm() > 0.01
    value = learner.added_loss(optimizer)
    assert value is not None
    assert float(value) == pytest.approx(float(expected), rel=1e-4)


def test_after_demotion_the_old_task_stays_where_it_is_and_free_directions_train_on() -> None:
    learner, data = linear(), task_on(0, 1, 5)
    learn_linear(learner, task_on(0, 1, 2))
    start = shared_weight(learner)
    optimizer = begin(learner, data)
    step(learner, optimizer, data, 3)
    snapshot = learner.snapshot()
    step(learner, optimizer, data, 3)
    learner.eps2 = 1.0  # no cosine is that large
    learner.end_epoch()
    regime = learner.memory["0"].regimes[1][0]
    assert (regime.number, regime.demoted_at) == (2, 1)
    at_demotion = shared_weight(learner)
    assert {0, 1} <= set(axes_of(at_demotion - start))
    step(learner, optimizer, data, 5)
    moved = shared_weight(learner) - at_demotion
    assert 5 in axes_of(moved)
    assert torch.equal(moved[:, :3], torch.zeros_like(moved[:, :3]))

    snapshot.restore()
    restored = shared_weight(learner)
    assert {0, 1} <= set(axes_of(restored - at_demotion))
    step(learner, optimizer, data, 5)
    moved = shared_weight(learner) - restored
    assert torch.equal(moved[:, :3], torch.zeros_like(moved[:, :3]))
    learner.end_task(data)


def test_where_no_gradients_agree_the_bits_are_those_without_regime_three() -> None:
    weights = []
    for eps2 in (2.0, 1.0):  # with 1, gradients are kept, but no cosine is that large
        learner = cuber.LoRA(vit(), rank=4, eps2=eps2)
        for data in tasks():
            learn(learner, data)
        weights.append(learner.model.state_dict())
        assert (next(iter(learner.memory.values())).gradients[0] is None) == (eps2 > 1)
    assert list(weights[0]) == list(weights[1])
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_run_that_is_resumed_in_regime_three_gives_the_same_bits_and_its_exports_answer_the_same() -> None:
    data, settings = tasks(), {"rank": 4, "eps1": 0.0, "eps2": 0.0}
    learner = cuber.LoRA(vit(), **settings)
    learn(learner, data[0])
    learner.begin_task(data[1], loss_fn)
    optimizer = learner.wrap(adamw(learner.parameters()))
    for name, layer in learner.layers.items():
        count = sum(
            learner.adapters.up(it, name).numel() for it, own in learner.ranks.items() if "1" in it and name in own
        )
        assert count <= 4 * (layer.dimension + layer.outputs)
    train(learner, learner.model, data[1], optimizer)
    held = [bool(moving.held.all()) for moving in learner.moving.values()]
    assert any(held)
    assert not all(held)
    saved = copy.deepcopy((learner.state_dict(), learner.model.state_dict(), optimizer.state_dict()))

    resumed = cuber.LoRA(vit(seed=1), **settings)
    resumed.load_state_dict(saved[0])
    resumed.model.load_state_dict(saved[1])
    resumed.resume_task(loss_fn)
    other = resumed.wrap(adamw(resumed.parameters()))
    other.load_state_dict(saved[2])
    for one, its_optimizer in ((learner, optimizer), (resumed, other)):
        torch.manual_seed(5)  # the new head of the next task
        train(one, one.model, data[1], its_optimizer)
        one.end_task(data[1])
        learn(one, data[2])
    weights = resumed.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in learner.model.state_dict().items())
    assert learner.budgets == resumed.budgets
    assert learner.regimes == resumed.regimes

    x = data[0][0][0]
    for task in range(3):
        with torch.no_grad(), learner.as_task(task) as model:
            assert torch.allclose(learner.export(task)(x).logits, model.eval()(x).logits, atol=1e-5)
