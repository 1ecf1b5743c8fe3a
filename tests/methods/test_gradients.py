"""What a scaling reads of a weight that is held is read only where it is held, and no way round gives anything else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber import CUBER, TRGP
from cuber.layers import protected

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3)), (12,)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 8, 3, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3)),
        (2, 5, 5),
    ),
}
CHANGING = {"eps2": -1.0, "lam": 0.1, "penalty": "norm"}


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protected, "WORTHWHILE", -1)


def data(task: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    return [(torch.randn(4, *shape, generator=generator).to(dtype), torch.arange(4) % 3) for _ in range(5)]


def in_third_task(name: str, kind: type[TRGP] = TRGP, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    torch.manual_seed(1)
    build, shape = MODELS[name]
    learner = kind(build().to(dtype), **{"eps1": 0.0, "threshold": 0.8, **settings})
    for task in range(3):
        loader = data(task, shape, dtype)
        learner.begin_task(loader, functional.cross_entropy)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        steps(learner, optimizer, loader)
        if task < 2:
            learner.end_task(loader)
    return learner, optimizer, loader


def steps(learner: TRGP, optimizer: Any, loader: list[Any], tamper: Callable[[Any], None] | None = None) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(learner.model(x), y).backward()
        if tamper is not None:
            tamper(learner.model)
        optimizer.step()


def drift(learner: TRGP) -> float:
    """How far weights have moved where they are protected, beside their size."""
    worst = 0.0
    for name, layer in learner.layers.items():
        inside = learner.moved(name)[:, learner._protected_columns(name)]
        worst = max(worst, float(inside.norm() / layer.matrix().detach().norm()))
    return worst


def clamp_unseen(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.data.clamp_(-0.01, 0.01)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_that_are_changed_unseen_by_autograd_are_projected_again(name: str) -> None:
    learner, optimizer, loader = in_third_task(name)
    steps(learner, optimizer, loader * 4, clamp_unseen)
    assert drift(learner) < 2e-6


@pytest.mark.parametrize("name", MODELS)
def test_in_mixed_precision_protection_is_whole(name: str) -> None:
    """With so few columns that what is known along them is used to project."""
    learner, optimizer, loader = in_third_task(name, threshold=0.3)
    assert all(projector._protected is not None for projector in learner._projectors.values())
    for x, y in loader * 4:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.cross_entropy(learner.model(x), y)
        loss.backward()
        optimizer.step()
    assert drift(learner) < 2e-6


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("kind", "settings"), [(TRGP, {}), (CUBER, CHANGING)])
def test_a_gradient_may_be_differentiated_again(name: str, kind: type, settings: dict[str, Any]) -> None:
    learner, _, loader = in_third_task(name, kind, torch.float64, **settings)
    (x, y), found = loader[0], []
    for short in (True, False):
        if not short:
            for layer in learner.layers.values():
                layer.product = None
        x = x.detach().requires_grad_()
        learner.model.zero_grad()
        loss = functional.cross_entropy(learner.model(x), y)
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        scalings = [layer.scaling.matrix for layer in learner.layers.values()]
        for scaling in scalings:
            scaling.grad = None
        gradient.square().sum().backward(inputs=[*learner.model.parameters(), *scalings])
        weights = [learner._projectors[name](layer.gradient()) for name, layer in learner.layers.items()]
        found.append([*weights, *(scaling.grad for scaling in scalings)])
    for one, other in zip(*found, strict=True):
        assert other.any()
        assert torch.allclose(one, other, atol=1e-12)


def test_a_model_may_change_its_precision_in_mid_task() -> None:
    learner, optimizer, loader = in_third_task("linear")
    learner.model.double()
    doubled = [(x.double(), y) for x, y in loader]
    steps(learner, optimizer, doubled)
    learner.end_epoch()
    assert drift(learner) < 2e-6
    learner.end_task(doubled)


@pytest.mark.parametrize("name", MODELS)
def test_other_weights_in_its_place_are_read_as_they_are(name: str) -> None:
    learner, _, loader = in_third_task(name, dtype=torch.float64)
    x, model = loader[0][0], learner.model
    others = {key: p.detach() + 0.1 * torch.randn_like(p) for key, p in model.named_parameters()}
    answers = [torch.func.functional_call(model.train(mode), others, x) for mode in (True, False)]
    assert torch.allclose(*answers, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_nobody_holds_a_copy(name: str) -> None:
    learner, _, loader = in_third_task(name, dtype=torch.float64)
    twin, x = copy.deepcopy(learner.model), loader[0][0]
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert torch.allclose(twin.train()(x), twin.eval()(x), atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_of_the_learner_goes_on_as_the_learner_does(name: str) -> None:
    learner, optimizer, loader = in_third_task(name, CUBER, torch.float64, **CHANGING)
    twin = copy.deepcopy(learner)
    steps(twin, twin.wrap(torch.optim.SGD(twin.parameters(), lr=0.1)), loader)
    steps(learner, optimizer, loader)
    for one, other in zip(learner.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-12)
