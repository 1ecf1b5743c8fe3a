"""The cached displacement along free columns is what the weights say, whatever was done to them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from cuber import CUBER, GPM, CuberError
from cuber.layers import backends
from tests.loops import MakeOptimizer

WIDTHS = [(20, 6), (12, 30)]
"""Inputs and outputs of the first layer: more and fewer outputs than samples in a batch."""
Loader = list[tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True)
def _shortcuts_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "WORTHWHILE", 0)


def data(task: int, directions: int) -> Loader:
    """Batches whose inputs lie in 6, 8, 10, ... directions."""
    generator = torch.Generator().manual_seed(task)
    shared = torch.randn(30, directions, generator=torch.Generator().manual_seed(9))
    inputs = torch.randn(24, 30, generator=generator)[:, : 6 + 2 * task] @ shared[: 6 + 2 * task]
    return [(inputs.double()[start : start + 4], torch.arange(4) % 3) for start in range(0, 24, 4)]


def learner_of(widths: tuple[int, int], seed: int = 0, **settings: Any) -> CUBER:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(*widths), nn.Tanh(), nn.Linear(widths[1], 3)).double()
    return CUBER(model, **{"eps1": 0.0, "eps2": -1.0, "threshold": 0.9, "lam": 0.1, "penalty": "norm", **settings})


def plain(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.05)


def in_third_task(widths: tuple[int, int], make: MakeOptimizer = plain, **settings: Any) -> tuple[CUBER, Optimizer]:
    """Return a learner that begins a third task, with old tasks in regime 3 and free columns, and its optimizer."""
    learner = learner_of(widths, **settings)
    for task in range(2):
        optimizer = begin(learner, data(task, widths[0]))
        train(learner, optimizer, data(task, widths[0]))
        learner.end_task(data(task, widths[0]))
    optimizer = begin(learner, data(2, widths[0]), make)
    assert any(len(layer.require_constraint().free_columns) for layer in learner.layers.values())
    return learner, optimizer


def begin(learner: CUBER, loader: Loader, make: MakeOptimizer = plain) -> Optimizer:
    learner.begin_task(loader, functional.cross_entropy)
    return learner.wrap(make(learner.parameters()))


def train(learner: CUBER, optimizer: Optimizer, loader: Loader, check: Callable[[], object] = lambda: None) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(learner.model(x), y).backward()
        optimizer.step()
        check()


def check_displacement(learner: CUBER) -> None:
    """Fail unless each layer's displacement is that of its weights, and something has moved."""
    sizes = []
    for name, layer in learner.layers.items():
        expected = learner.displacement(name)[:, ~learner.memory[name].protected_columns(at_start=True)]
        assert torch.allclose(layer.backend.displacement(), expected, atol=1e-12)
        sizes.append(float(expected.norm()))
    assert max(sizes) > 1e-4


@pytest.mark.parametrize(
    "settings", [{}, {"penalty": "squared"}, {"penalty": "energy", "lam": 3.0}, {"lam": 0.05, "selected": 1}]
)
def test_it_is_cached_from_step_to_step_of_plain_sgd(settings: dict[str, Any]) -> None:
    learner, optimizer = in_third_task(WIDTHS[1], **settings)

    def check() -> None:
        cached = learner.layers["0"].backend.cached_displacement
        assert cached is not None
        check_displacement(learner)
        assert learner.layers["0"].backend.displacement() is cached  # not computed anew

    train(learner, optimizer, data(2, WIDTHS[1][0]), check)


MAKERS: dict[str, MakeOptimizer] = {
    "momentum": lambda parameters: SGD(parameters, lr=0.05, momentum=0.5),
    "decay": lambda parameters: SGD(parameters, lr=0.05, weight_decay=0.1),
    "maximize": lambda parameters: SGD(parameters, lr=0.05, maximize=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "groups": lambda parameters: SGD([{"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(parameters)]),
}


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("name", MAKERS)
def test_it_is_right_with_other_optimizers(name: str, widths: tuple[int, int]) -> None:
    learner, optimizer = in_third_task(widths, MAKERS[name])
    train(learner, optimizer, data(2, widths[0]), lambda: check_displacement(learner))


@pytest.mark.parametrize("widths", WIDTHS)
def test_it_is_right_where_a_schedule_changes_the_learning_rate(widths: tuple[int, int]) -> None:
    learner, optimizer = in_third_task(widths)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(learner, optimizer, data(2, widths[0]), lambda: (schedule.step(), check_displacement(learner)))


def test_hooks_before_and_after_ours_are_noticed() -> None:
    learner, optimizer = in_third_task(WIDTHS[1])

    def halve_gradients(*_: Any) -> None:
        for weight in learner.model.parameters():
            weight.grad.mul_(0.5)  # type: ignore[union-attr]

    def clamp_weights(*_: Any) -> None:
        for weight in learner.model.parameters():
            weight.data.clamp_(-0.2, 0.2)

    optimizer.register_step_pre_hook(halve_gradients)
    optimizer.register_step_post_hook(clamp_weights)
    train(learner, optimizer, data(2, WIDTHS[1][0]), lambda: check_displacement(learner))


@pytest.mark.parametrize("lam", [0.1, 0.0])
def test_weights_that_were_changed_past_the_optimizer_are_noticed(lam: float) -> None:
    learner, optimizer = in_third_task(WIDTHS[1], lam=lam)

    def shift() -> None:
        for parameter in learner.model.parameters():
            parameter.data.add_(0.01)
        check_displacement(learner)

    train(learner, optimizer, data(2, WIDTHS[1][0]), shift)


def test_a_restored_snapshot_is_noticed() -> None:
    learner, optimizer = in_third_task(WIDTHS[1])
    batches = data(2, WIDTHS[1][0])
    train(learner, optimizer, batches[:2])
    best = learner.snapshot()
    train(learner, optimizer, batches[2:4])
    best.restore()
    check_displacement(learner)
    train(learner, optimizer, batches[4:], lambda: check_displacement(learner))


def test_in_half_precision_it_is_not_cached() -> None:
    learner, _ = in_third_task(WIDTHS[1])
    learner.end_task(data(2, WIDTHS[1][0]))
    learner.model.bfloat16()
    loader = [(x.bfloat16(), y) for x, y in data(3, WIDTHS[1][0])]

    def check() -> None:
        assert all(layer.backend.cached_displacement is None for layer in learner.layers.values())

    train(learner, begin(learner, loader), loader, check)


def test_nothing_of_it_is_left_after_the_task() -> None:
    learner, optimizer = in_third_task(WIDTHS[1])
    train(learner, optimizer, data(2, WIDTHS[1][0])[:1])
    learner.end_task(data(2, WIDTHS[1][0]))
    for layer in learner.layers.values():
        assert layer.constraint is None
        assert layer.backend.cached_displacement is None
    assert not learner.anchors
    with pytest.raises(CuberError, match="displacement before begin_task"):
        learner.displacement("0")


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("tasks", [(0,), (1,), (2, 1), (1, 2)])
def test_gradients_of_a_backward_pass_as_another_task_are_projected_too(
    tasks: tuple[int, ...], widths: tuple[int, int]
) -> None:
    learner, optimizer = in_third_task(widths, selected=1)
    for x, y in data(2, widths[0]):
        optimizer.zero_grad()
        for task in tasks:
            with learner.as_task(task) as model:
                functional.cross_entropy(model.train()(x), y).backward()
        optimizer.step()
    check_displacement(learner)
    for name in learner.layers:
        protected, displacement = learner.memory[name].protected_columns(), learner.displacement(name)
        assert displacement[:, protected].norm() < 1e-10
        assert displacement[:, ~protected].norm() > 1e-4 or bool(protected.all())


@pytest.mark.parametrize("weights_first", [True, False])
@pytest.mark.parametrize("widths", WIDTHS)
def test_a_resumed_task_goes_on_to_the_bit(widths: tuple[int, int], weights_first: bool) -> None:
    learner, optimizer = in_third_task(widths)
    batches = data(2, widths[0])
    train(learner, optimizer, batches[:3])
    saved = copy.deepcopy((learner.model.state_dict(), learner.state_dict()))
    twin = learner_of(widths, seed=5)
    loads = [lambda: twin.model.load_state_dict(saved[0]), lambda: twin.load_state_dict(saved[1])]
    for load in loads if weights_first else reversed(loads):
        load()
    twin.resume_task(functional.cross_entropy)
    train(twin, twin.wrap(plain(twin.parameters())), batches[3:])
    train(learner, optimizer, batches[3:])
    for ours, theirs in zip(learner.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_copy_of_the_learner_goes_on_to_the_bit(widths: tuple[int, int]) -> None:
    learner, optimizer = in_third_task(widths)
    batches = data(2, widths[0])
    train(learner, optimizer, batches[:3])
    assert any(layer.backend.cached_displacement is not None for layer in learner.layers.values()) or widths[1] < 20
    twin = copy.deepcopy(learner)
    train(twin, twin.wrap(plain(twin.parameters())), batches[3:])
    train(learner, optimizer, batches[3:])
    for ours, theirs in zip(learner.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_displacement_of_a_method_without_regimes_is_that_of_its_weights() -> None:
    torch.manual_seed(0)
    learner = GPM(nn.Linear(20, 3).double(), threshold=0.9)
    for task in range(2):
        learner.begin_task(data(task, 20), functional.cross_entropy)
        start = learner.layers["linear"].matrix().detach().clone()
        optimizer = learner.wrap(plain(learner.parameters()))
        train(learner, optimizer, data(task, 20))  # type: ignore[arg-type]
        if task == 0:
            learner.end_task(data(task, 20))
    with torch.no_grad():
        learner.model.weight.add_(0.1)  # type: ignore[operator, union-attr]
    expected = (learner.layers["linear"].matrix().detach() - start) @ learner.memory["linear"].basis
    assert torch.allclose(learner.displacement("linear"), expected, atol=1e-12)
