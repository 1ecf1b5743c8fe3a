"""Gradients that come out of the backward pass projected: the same as projecting them, and never taken on trust."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cuber import GPM, TRGP
from cuber.layers import ProjectedProduct, ProtectedLayer, protected
from cuber.subspace import Projector
from tests.layers.table import protected as layer_of

WIDE = 64
"""Outputs: more than there are inputs in a batch."""


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protected, "WORTHWHILE", -1)


def projected_layer(bias: bool, rank: int, dtype: torch.dtype = torch.float64) -> tuple[ProtectedLayer, nn.Linear]:
    module = nn.Linear(12, WIDE, bias=bias, dtype=dtype)
    layer = layer_of(module)
    basis = torch.linalg.qr(torch.randn(layer.dimension, rank, dtype=torch.float64)).Q.to(dtype)
    layer.product = ProjectedProduct(Projector(basis))
    return layer, module


def backward(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> Tensor:
    layer.forward(module, x).square().mean().backward()
    return layer.gradient()


@pytest.mark.parametrize("bias", [True, False], ids=["with bias", "without bias"])
@pytest.mark.parametrize("rank", [2, 7, 12])
@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12)])
def test_it_is_the_gradient_that_the_projector_would_have_made(bias: bool, rank: int, shape: tuple[int, ...]) -> None:
    layer, module = projected_layer(bias, rank)
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    ours, of_input = backward(layer, module, x), x.grad
    assert layer.is_projected()
    product, layer.product, x.grad = layer.product, None, None
    module.zero_grad()
    plain = backward(layer, module, x)
    assert product is not None
    assert not torch.allclose(ours, plain)
    assert torch.allclose(ours, product.projector(plain), atol=1e-12)
    assert of_input is not None
    assert x.grad is not None
    assert torch.allclose(of_input, x.grad, atol=1e-12)


def test_while_nobody_trains_the_gradient_is_as_it_is() -> None:
    layer, module = projected_layer(bias=True, rank=5)
    x = torch.randn(3, 12, dtype=torch.float64)
    module.eval()
    looked_at = backward(layer, module, x)
    assert not layer.is_projected()
    module.train().zero_grad()
    assert not torch.allclose(looked_at, backward(layer, module, x))


def test_torch_func_gets_the_gradient_as_it_is() -> None:
    layer, module = projected_layer(bias=True, rank=5)
    x = torch.randn(3, 12, dtype=torch.float64)
    module.eval()
    expected = backward(layer, module, x)
    module.train()

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, weights, (x,)).square().mean()

    layer.attach()
    gradients = torch.func.grad(loss)({name: p.detach() for name, p in module.named_parameters()})
    assert torch.allclose(layer.join([gradients["weight"], gradients["bias"]]), expected, atol=1e-12)


def scale(p: nn.Parameter) -> None:
    assert p.grad is not None
    p.grad *= 0.5


def replace_by_scaled(p: nn.Parameter) -> None:
    assert p.grad is not None
    p.grad = p.grad * 0.5


def disturb(p: nn.Parameter) -> None:
    assert p.grad is not None
    p.grad += torch.randn_like(p.grad)


def replace(p: nn.Parameter) -> None:
    p.grad = torch.randn_like(p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("change", "still"), [(scale, True), (replace_by_scaled, True), (disturb, False), (replace, False)]
)
def test_what_was_changed_since_is_looked_at(
    change: Callable[[nn.Parameter], None], still: bool, dtype: torch.dtype
) -> None:
    layer, module = projected_layer(bias=True, rank=5, dtype=dtype)
    backward(layer, module, torch.randn(3, 12, dtype=dtype))
    for parameter in layer.parameters:
        change(parameter)
    assert layer.is_projected() == still


def test_a_regularizer_beside_the_layer_is_noticed() -> None:
    layer, module = projected_layer(bias=False, rank=5)
    x = torch.randn(3, 12, dtype=torch.float64)
    (layer.forward(module, x).square().mean() + layer.parameter.square().sum()).backward()
    assert not layer.is_projected()


def train(kind: type[GPM], steps: int, tamper: Callable[[nn.Parameter], None] | None = None) -> tuple[GPM, Tensor]:
    """A wide network over two tasks; the learner in the second, and what its first layer was when that began."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, WIDE), nn.ReLU(), nn.Linear(WIDE, 3))
    settings = {} if kind is GPM else {"eps1": 0.0}
    learner = kind(model, threshold=0.6, **settings)  # type: ignore[arg-type]
    data = [[(torch.randn(6, 12), torch.randint(3, (6,))) for _ in range(4)] for _ in range(3)]
    for task, loader in enumerate(data):
        learner.begin_task(loader, nn.functional.cross_entropy)
        before = learner.layers["0"].matrix().detach().clone()
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        for step in range(steps):
            x, y = loader[step % 4]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            if tamper is not None:
                tamper(learner.layers["0"].parameter)
            optimizer.step()
        if task < 2:
            learner.end_task(loader)
    return learner, before


@pytest.mark.parametrize("kind", [GPM, TRGP])
def test_training_goes_the_way_it_goes_without(kind: type[GPM], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, before = train(kind, 8)
    monkeypatch.setattr(protected, "WORTHWHILE", float("inf"))
    plain, _ = train(kind, 8)
    assert not torch.allclose(ours.layers["0"].matrix(), before, atol=1e-3)
    for one, other in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("tamper", [scale, replace_by_scaled, disturb, replace])
def test_whatever_is_done_to_the_gradient_old_tasks_stay(tamper: Callable[[nn.Parameter], None]) -> None:
    learner, before = train(GPM, 8, tamper)
    moved = learner.layers["0"].matrix().detach() - before
    basis = learner.memory["0"].basis
    assert moved.norm() > 1e-3
    assert (moved @ basis).norm() < 1e-5 * moved.norm()
