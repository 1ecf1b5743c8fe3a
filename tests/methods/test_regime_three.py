"""Regime 3: which columns may move, the penalty, and demotion to regime 2. One layer, inputs chosen by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber import CUBER
from cuber.subspace import LayerMemory
from tests.loops import scaled

DIMENSION, OUTPUTS = 8, 6


STRENGTHS = 1 + 0.1 * torch.arange(DIMENSION)
"""Strength of the inputs along each axis: unequal, so that the axes become the columns of the pool."""


def task_on(*axes: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return a regression task whose input vectors are these axes, four times each."""
    x = torch.diag(STRENGTHS)[list(axes)].repeat(4, 1)
    return [(x, torch.randn(len(x), OUTPUTS, generator=torch.Generator().manual_seed(seed)))]


def learner_of(**settings: Any) -> CUBER:
    torch.manual_seed(0)
    defaults = {"eps1": 0.5, "eps2": -1.0, "lam": 0.0, "keep": 1.0, "threshold": 1.0, "penalty": "norm"}
    return CUBER(nn.Linear(DIMENSION, OUTPUTS, bias=False), **(defaults | settings))


def begin(learner: Any, loader: list[tuple[Tensor, Tensor]], lr: float = 0.1) -> Any:
    learner.begin_task(loader, functional.mse_loss)
    return learner.wrap(torch.optim.SGD(learner.parameters(), lr=lr))


def step(learner: Any, optimizer: Any, loader: list[tuple[Tensor, Tensor]], count: int = 1) -> None:
    for _ in range(count):
        for x, y in loader:
            optimizer.zero_grad()
            functional.mse_loss(learner.model(x), y).backward()
            optimizer.step()


def learn(learner: Any, loader: list[tuple[Tensor, Tensor]], steps: int = 5) -> None:
    step(learner, begin(learner, loader), loader, steps)
    learner.end_epoch()
    learner.end_task(loader)


def moves_along(learner: Any, before: Tensor) -> list[int]:
    """Return the axes along which the weight has changed."""
    change = (learner.model.weight.detach() - before).norm(dim=0)
    return [axis for axis in range(DIMENSION) if change[axis] > 1e-4]


def numbers(learner: Any) -> dict[int, int]:
    return {task: regime.number for task, regime in learner.regimes[-1]["linear"].items()}


def test_a_column_is_free_only_if_all_tasks_that_read_it_are_in_regime_3() -> None:
    learner = learner_of(eps1=2.0)
    learn(learner, task_on(0, 1, 2))
    learn(learner, task_on(2, 3))
    before = learner.model.weight.detach().clone()
    loader = task_on(0, 1, 2, 4, seed=5)
    learner.eps1 = 0.8
    optimizer = begin(learner, loader)
    assert numbers(learner) == {0: 3, 1: 1}
    step(learner, optimizer, loader, 3)
    assert moves_along(learner, before) == [0, 1, 4], "2 is also read by the task in regime 1"


def demote(learner: CUBER, task: int) -> None:
    """Demote an old task to regime 2, whatever the gradients are."""
    learner.regimes[-1]["linear"][task].demote(learner.epoch)
    learner.constrain(learner.layers["linear"])


@pytest.mark.parametrize("complete", [True, False])
def test_columns_that_a_task_reads_through_its_scaling_are_protected_and_must_be(
    complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protecting only the columns that a task owns would change its outputs."""
    if not complete:
        monkeypatch.setattr(LayerMemory, "columns_read", lambda self, tasks: self.owners[list(tasks)].any(0))
    learner = learner_of(eps2=1.0)
    learn(learner, task_on(0, 1, 2), steps=20)
    learn(learner, task_on(2, 3, seed=1), steps=20)
    assert torch.count_nonzero(scaled(learner, 1, "linear").abs() > 1e-3) > 1
    x = task_on(2, 3)[0][0]
    with torch.no_grad(), learner.as_task(1) as model:
        before = model(x)
    learner.eps2 = -1.0
    loader = task_on(0, 1, seed=2)
    optimizer = begin(learner, loader)
    assert numbers(learner) == {0: 3, 1: 1}
    step(learner, optimizer, loader, 20)
    learner.end_task(loader)
    with torch.no_grad(), learner.as_task(1) as model:
        changed = float((model(x) - before).norm() / before.norm())
    assert changed < 1e-5 if complete else changed > 1e-2


def test_after_a_demotion_weights_stay_where_they_have_moved_and_move_no_further() -> None:
    learner = learner_of()
    learn(learner, task_on(0, 1))
    loader = task_on(0, 1, 2, seed=3)
    start = learner.model.weight.detach().clone()
    optimizer = begin(learner, loader)
    assert numbers(learner) == {0: 3}
    step(learner, optimizer, loader, 3)
    learner.end_epoch()
    assert numbers(learner) == {0: 3}
    step(learner, optimizer, loader, 3)
    learner.eps2 = 1.1  # no gradients agree as much
    learner.end_epoch()
    regime = learner.regimes[-1]["linear"][0]
    assert (regime.number, regime.demoted_at) == (2, 2)
    demoted = learner.model.weight.detach().clone()
    assert moves_along(learner, start) == [0, 1, 2]
    step(learner, optimizer, loader, 5)
    learner.end_epoch()
    assert moves_along(learner, demoted) == [2]
    learner.end_task(loader)  # without a warning of drift
    assert moves_along(learner, demoted) == [2]
    assert learner.regimes[1]["linear"][0].demoted_at == 2


def test_a_demoted_task_is_not_promoted_again_within_the_task() -> None:
    learner = learner_of(check="step")
    learn(learner, task_on(0, 1))
    loader = task_on(0, 1, seed=3)
    optimizer = begin(learner, loader)
    learner.eps2 = 1.1
    step(learner, optimizer, loader)
    assert numbers(learner) == {0: 2}
    learner.eps2 = -1.0
    before = learner.model.weight.detach().clone()
    step(learner, optimizer, loader, 3)
    learner.end_epoch()
    assert numbers(learner) == {0: 2}
    assert moves_along(learner, before) == []


def test_demoting_one_of_two_tasks_protects_its_columns_only() -> None:
    learner = learner_of(eps1=2.0)
    learn(learner, task_on(0, 1))
    learn(learner, task_on(2, 3, seed=1))
    learner.eps1 = 0.1
    loader = task_on(0, 1, 2, 3, seed=2)
    optimizer = begin(learner, loader)
    assert numbers(learner) == {0: 3, 1: 3}
    demote(learner, 1)
    before = learner.model.weight.detach().clone()
    step(learner, optimizer, loader, 3)
    assert moves_along(learner, before) == [0, 1]


@pytest.mark.parametrize("penalty", ["norm", "squared", "energy"])
def test_a_step_follows_the_gradient_of_loss_and_penalty_by_autograd(penalty: str) -> None:
    learner = learner_of(lam=0.3, penalty=penalty)
    learn(learner, task_on(0, 1, 2))
    loader = task_on(1, 2, 3, seed=3)
    start = learner.model.weight.detach().clone()
    optimizer = begin(learner, loader)
    assert numbers(learner) == {0: 3}
    step(learner, optimizer, loader, 2)
    before = learner.model.weight.detach().clone().requires_grad_()
    scaling = learner.scalings["linear"]
    basis, A = scaling.basis, scaling.dense()
    (x, y) = loader[0]
    inside = (before - start) @ basis
    energies = (STRENGTHS.diag() @ basis).square().sum(0)  # of each column, over the samples of task 0
    value = {
        "norm": inside.norm(),
        "squared": inside.square().sum(),
        "energy": (inside.square() * energies / energies.max()).sum(),
    }[penalty]
    (functional.mse_loss(x @ (before + before @ basis @ A @ basis.T).T, y) + 0.3 * value).backward()
    step(learner, optimizer, loader)
    assert torch.allclose(learner.model.weight, before - 0.1 * before.grad, atol=1e-6)


@pytest.mark.parametrize("penalty", ["norm", "squared", "energy"])
def test_the_penalty_has_no_effect_at_first_holds_back_later_and_ends_with_the_demotion(penalty: str) -> None:
    paths = {}
    for lam in (0.0, 2.0):
        learner = learner_of(lam=lam, penalty=penalty)
        learn(learner, task_on(0, 1))
        loader = task_on(0, 1, seed=3)
        start = learner.model.weight.detach().clone()
        optimizer = begin(learner, loader, lr=0.01)
        step(learner, optimizer, loader)
        first = learner.model.weight.detach().clone()
        step(learner, optimizer, loader, 10)
        paths[lam] = first, float((learner.model.weight.detach() - start).norm())
        demote(learner, 0)
        x, y = loader[0]
        optimizer.zero_grad()
        functional.mse_loss(learner.model(x), y).backward()
        before = learner.model.weight.detach().clone()
        optimizer.step()
        assert (learner.model.weight.detach() - before).abs().max() < 1e-6
    assert torch.equal(paths[0.0][0], paths[2.0][0])
    assert paths[2.0][1] < 0.9 * paths[0.0][1]


def test_a_step_with_a_closure_returns_the_loss_with_the_penalty() -> None:
    learner = learner_of(lam=2.0)
    learn(learner, task_on(0, 1))
    loader = task_on(0, 1, seed=3)
    start = learner.model.weight.detach().clone()
    optimizer = begin(learner, loader)
    step(learner, optimizer, loader, 2)
    x, y = loader[0]
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss(learner.model(x), y)
        loss.backward()
        losses.append(loss.detach())
        return loss

    norm = (learner.model.weight.detach() - start).norm()
    returned = optimizer.step(closure)
    assert float(returned.detach()) == pytest.approx(float(losses[0] + 2.0 * norm), rel=1e-5)


def test_gradients_that_agree_improve_the_old_task() -> None:
    learner = learner_of(eps2=0.0, lam=0.0)
    old, same_again = task_on(0, 1, seed=3), task_on(0, 1, seed=3)
    learn(learner, old, steps=2)
    (x, y) = old[0]
    with torch.no_grad(), learner.as_task(0) as model:
        before = float(functional.mse_loss(model(x), y))
    learn(learner, same_again, steps=5)
    assert learner.regimes[1]["linear"][0].number == 3
    assert learner.regimes[1]["linear"][0].cosine == pytest.approx(1.0, abs=1e-4)
    with torch.no_grad(), learner.as_task(0) as model:
        assert float(functional.mse_loss(model(x), y)) < before


def test_a_snapshot_from_before_a_demotion_can_be_restored() -> None:
    learner = learner_of()
    learn(learner, task_on(0, 1))
    loader = task_on(0, 1, 2, seed=3)
    optimizer = begin(learner, loader)
    step(learner, optimizer, loader, 2)
    best = learner.snapshot()
    restored = learner.model.weight.detach().clone()
    step(learner, optimizer, loader, 5)
    learner.eps2 = 2.0
    learner.end_epoch()
    assert numbers(learner) == {0: 2}
    step(learner, optimizer, loader, 2)
    best.restore()
    learner.end_task(loader)
    assert torch.allclose(learner.model.weight.detach(), restored, atol=1e-6)


@pytest.mark.parametrize("bias_first", [False, True])
def test_the_penalty_is_the_same_whichever_optimizer_has_the_bias(bias_first: bool) -> None:
    def trained(several: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(DIMENSION, OUTPUTS)
        learner = CUBER(model, eps1=0.0, eps2=-1.0, lam=1.0, penalty="squared", threshold=1.0)
        for task in range(2):
            loader = task_on(0, 1, 2, seed=task)
            learner.begin_task(loader, functional.mse_loss)
            groups = [[p for p in learner.parameters() if p is not model.bias], [model.bias]]
            if several and task:
                optimizers = [learner.wrap(torch.optim.SGD(group, lr=0.1)) for group in groups]
            else:
                optimizers = [learner.wrap(torch.optim.SGD([{"params": group} for group in groups], lr=0.1))]
            for _ in range(6):
                learner.model.zero_grad()
                for optimizer in optimizers:
                    optimizer.zero_grad()
                functional.mse_loss(model(loader[0][0]), loader[0][1]).backward()
                for optimizer in optimizers[:: -1 if bias_first else 1]:
                    optimizer.step()
            learner.end_epoch()
            assert task == 0 or numbers(learner) == {0: 3}
            learner.end_task(loader)
        return torch.cat([model.weight, model.bias.unsqueeze(1)], 1).detach()

    assert torch.allclose(trained(several=True), trained(several=False), atol=1e-6)


def test_the_penalty_acts_on_gradients_that_closures_compute_for_each_optimizer() -> None:
    def weight_moved(lam: float) -> float:
        torch.manual_seed(0)
        model = nn.Linear(DIMENSION, OUTPUTS)
        learner = CUBER(model, eps1=0.0, eps2=-1.0, lam=lam, penalty="squared", threshold=1.0)
        for task in range(2):
            ((x, y),) = loader = task_on(0, 1, 2, seed=task)
            learner.begin_task(loader, functional.mse_loss)
            before = model.weight.detach().clone()
            parts = [[p for p in learner.parameters() if p is not model.bias], [model.bias]]
            optimizers = [learner.wrap(torch.optim.SGD(part, lr=0.1)) for part in parts]

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                model.zero_grad()
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            for _ in range(20):
                for optimizer in reversed(optimizers):
                    optimizer.step(closure)
            learner.end_task(loader)
        return float((model.weight.detach() - before).norm())

    assert weight_moved(lam=2.0) < 0.5 * weight_moved(lam=0.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_demotes_nothing(value: float) -> None:
    """A GradScaler skips such a step of a fused optimizer inside of it, after the hooks."""
    learner = learner_of(check="step")
    learn(learner, task_on(0, 1))
    optimizer = begin(learner, task_on(0, 1, seed=1))
    before = numbers(learner)
    assert before == {0: 3}
    layer = next(iter(learner.layers.values()))
    layer.parameter.grad = torch.full_like(layer.parameter, value)
    learner.before_step(optimizer)
    assert numbers(learner) == before
