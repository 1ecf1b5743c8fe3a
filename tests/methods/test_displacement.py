"""How far a weight has moved along its free columns: carried from step to step, and always what it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from cuber import CUBER
from cuber.layers import protected

WIDTHS = [(20, 6), (12, 30)]
"""Inputs and outputs of the first layer: fewer outputs, whose reading is known, and more, whose inputs are scaled."""


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protected, "WORTHWHILE", -1)  # so small a layer would not be


def data(task: int, directions: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    shared = torch.randn(30, directions, generator=torch.Generator().manual_seed(9))
    inputs = torch.randn(24, 30, generator=generator)[:, : 6 + 2 * task] @ shared[: 6 + 2 * task]
    return [(inputs.double()[start : start + 4], torch.arange(4) % 3) for start in range(0, 24, 4)]


def in_third_task(widths: tuple[int, int], make: Callable[[Any], Optimizer], **settings: Any) -> tuple[CUBER, Any]:
    """With the nearest old tasks in regime 3 in both layers, and columns that nobody else needs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(*widths), nn.Tanh(), nn.Linear(widths[1], 3)).double()
    learner = CUBER(model, eps1=0.0, eps2=-1.0, threshold=0.9, **{"lam": 0.1, "penalty": "norm", **settings})
    for task in range(2):
        train(learner, data(task, widths[0]), lambda parameters: SGD(parameters, lr=0.05))
        learner.end_task(data(task, widths[0]))
    optimizer = begin(learner, data(2, widths[0]), make)
    assert any(bool(layer.held.free.shape[1]) for layer in learner.layers.values() if layer.held)
    return learner, optimizer


def begin(learner: CUBER, loader: list[Any], make: Callable[[Any], Optimizer]) -> Optimizer:
    learner.begin_task(loader, functional.cross_entropy)
    return learner.wrap(make(learner.parameters()))


def train(learner: CUBER, loader: list[Any], make: Callable[[Any], Optimizer]) -> None:
    optimizer = begin(learner, loader, make)
    for batch in loader:
        step(learner, optimizer, batch)


def step(
    learner: CUBER,
    optimizer: Optimizer,
    batch: Any,
    tamper: Callable[[nn.Module], object] | None = None,
    passes: int = 1,
) -> None:
    optimizer.zero_grad()
    for _ in range(passes):
        functional.cross_entropy(learner.model(batch[0]), batch[1]).backward()
    if tamper is not None:
        tamper(learner.model)
    optimizer.step()


def plain(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.05)


def is_what_it_is(learner: CUBER) -> bool:
    """Whether what is known of every layer's move is what a look at its weights says; something must have moved."""
    for name, layer in learner.layers.items():
        assert layer.held is not None
        expected = learner.moved(name)[:, ~learner._protected_columns(name, at_start=True)]
        if not torch.allclose(layer.moved(layer.held), expected, atol=1e-12):
            return False
    return any(float(layer.moved(layer.held).norm()) > 1e-4 for layer in learner.layers.values() if layer.held)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize(
    "settings", [{}, {"penalty": "squared"}, {"penalty": "energy", "lam": 3.0}, {"lam": 0.05, "selected": 1}]
)
def test_with_plain_steps_it_is_carried_along(widths: tuple[int, int], settings: dict[str, Any]) -> None:
    learner, optimizer = in_third_task(widths, plain, **settings)
    for batch in data(2, widths[0]):
        step(learner, optimizer, batch)
        assert learner.layers["0"].carried() is not None
        assert is_what_it_is(learner)


MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda parameters: SGD(parameters, lr=0.05, momentum=0.5),
    "decay": lambda parameters: SGD(parameters, lr=0.05, weight_decay=0.1),
    "maximize": lambda parameters: SGD(parameters, lr=0.05, maximize=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "groups": lambda parameters: SGD([{"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(parameters)]),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("widths", WIDTHS)
def test_with_any_other_optimizer_it_is_looked_up(name: str, widths: tuple[int, int]) -> None:
    learner, optimizer = in_third_task(widths, MAKERS[name])
    for batch in data(2, widths[0]):
        step(learner, optimizer, batch)
        assert is_what_it_is(learner)


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def replace(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def shift(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(0.01)


def clamp_unseen(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.data.clamp_(-0.01, 0.01)  # type: ignore[union-attr]


def shift_unseen(model: nn.Module) -> None:
    next(model.parameters()).data.add_(0.01)


@pytest.mark.parametrize("tamper", [clip, replace, shift, clamp_unseen, shift_unseen])
@pytest.mark.parametrize("lam", [0.1, 0.0])
@pytest.mark.parametrize("widths", WIDTHS)
def test_whatever_is_done_to_gradients_or_weights_it_is_what_it_is(
    tamper: Any, lam: float, widths: tuple[int, int]
) -> None:
    learner, optimizer = in_third_task(widths, plain, lam=lam)
    for batch in data(2, widths[0]):
        step(learner, optimizer, batch, tamper)
        assert is_what_it_is(learner)


def test_gradients_of_several_batches_are_not_taken_for_those_of_the_last() -> None:
    learner, optimizer = in_third_task(WIDTHS[0], plain)
    for batch in data(2, 20):
        step(learner, optimizer, batch, passes=2)
        assert is_what_it_is(learner)


def test_a_scaled_loss_is_not_carried_along_scaled() -> None:
    learner, optimizer = in_third_task(WIDTHS[0], plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in data(2, 20):
        optimizer.zero_grad()
        scaler.scale(functional.cross_entropy(learner.model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert is_what_it_is(learner)


def test_hooks_of_others_on_either_side_of_ours_are_noticed() -> None:
    learner, optimizer = in_third_task(WIDTHS[0], plain)

    def halve(*_: Any) -> None:
        for weight in learner.model.parameters():
            weight.grad.mul_(0.5)  # type: ignore[union-attr]

    def clamp(*_: Any) -> None:
        for weight in learner.model.parameters():
            weight.data.clamp_(-0.2, 0.2)

    optimizer.register_step_pre_hook(halve)
    optimizer.register_step_post_hook(clamp)
    for batch in data(2, 20):
        step(learner, optimizer, batch)
        assert is_what_it_is(learner)


def test_in_half_precision_it_is_not_carried() -> None:
    learner, optimizer = in_third_task(WIDTHS[0], plain)
    learner.end_task(data(2, 20))
    learner.model.bfloat16()
    loader = [(x.bfloat16(), y) for x, y in data(3, 20)]
    optimizer = begin(learner, loader, plain)
    for batch in loader:
        step(learner, optimizer, batch)
        assert all(layer.carried() is None for layer in learner.layers.values())


def test_nothing_is_left_of_it_when_the_task_is_over() -> None:
    learner, optimizer = in_third_task(WIDTHS[0], plain)
    step(learner, optimizer, data(2, 20)[0])
    learner.end_task(data(2, 20))
    for layer in learner.layers.values():
        assert layer.held is None
        assert layer.carried() is None
        assert layer.gradient_along is None


@pytest.mark.parametrize("tasks", [(0,), (1,), (2, 1), (1, 2)])
def test_a_backward_pass_as_another_task_gets_past_nothing(tasks: tuple[int, ...]) -> None:
    """Of what the scaling being learnt knows of a gradient, nothing may be taken for another task's."""
    learner, optimizer = in_third_task(WIDTHS[0], plain, selected=1)
    for x, y in data(2, WIDTHS[0][0]):
        optimizer.zero_grad()
        for task in tasks:
            with learner.as_task(task) as model:
                functional.cross_entropy(model.train()(x), y).backward()
        optimizer.step()
    assert is_what_it_is(learner)
    for name in learner.layers:
        protected = learner._protected_columns(name)
        moved = learner.moved(name)
        assert moved[:, protected].norm() < 1e-10 < 1e-4 < moved[:, ~protected].norm() or not bool((~protected).any())


@pytest.mark.parametrize("weights_first", [True, False])
def test_resumed_it_is_what_it_was_to_the_bit(weights_first: bool) -> None:
    widths = WIDTHS[0]
    learner, optimizer = in_third_task(widths, plain)
    batches = data(2, widths[0])
    for batch in batches[:3]:
        step(learner, optimizer, batch)
    saved, weights = learner.state_dict(), {name: w.clone() for name, w in learner.model.state_dict().items()}
    torch.manual_seed(5)
    twin = CUBER(
        nn.Sequential(nn.Linear(*widths), nn.Tanh(), nn.Linear(widths[1], 3)).double(),
        **{name: getattr(learner, name) for name in ("eps1", "eps2", "threshold", "lam", "penalty")},
    )
    loads = [lambda: twin.model.load_state_dict(weights), lambda: twin.load_state_dict(saved)]
    for load in loads if weights_first else reversed(loads):
        load()
    twin.resume_task(functional.cross_entropy)
    optimizers = [optimizer, twin.wrap(plain(twin.parameters()))]
    for batch in batches[3:]:
        for one, its in zip((learner, twin), optimizers, strict=True):
            step(one, its, batch)
    for ours, theirs in zip(learner.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_copy_of_the_learner_goes_on_with_the_same_bits(widths: tuple[int, int]) -> None:
    learner, optimizer = in_third_task(widths, plain)
    batches = data(2, widths[0])
    for batch in batches[:3]:
        step(learner, optimizer, batch)
    assert any(layer.carried() is not None for layer in learner.layers.values())
    twin = copy.deepcopy(learner)
    twins = twin.wrap(plain(twin.parameters()))
    for batch in batches[3:]:
        step(learner, optimizer, batch)
        step(twin, twins, batch)
    for ours, theirs in zip(learner.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
