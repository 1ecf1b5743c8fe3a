"""A scaled layer whose weight is held: what it answers and the gradients it gives are those of the long way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cuber.layers import ProjectedProduct, ProtectedLayer, protected
from cuber.subspace import Held, PartlyHeld, Projector, Scaling, supports_of
from tests.layers.table import protected as layer_of

POOL = 7
"""Columns, of which the last are free."""

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "narrow": (lambda: nn.Linear(12, 2, bias=False), (2, 12)),
    "narrow with bias": (lambda: nn.Linear(12, 2), (2, 12)),
    "sequences": (lambda: nn.Linear(12, 8), (2, 3, 12)),
    "wide": (lambda: nn.Linear(9, 30), (5, 9)),
    "many inputs": (lambda: nn.Linear(12, 3), (20, 12)),
    "convolution": (lambda: nn.Conv2d(3, 4, 2, bias=False), (2, 3, 4, 4)),
    "convolution with bias": (lambda: nn.Conv2d(3, 4, 2), (2, 3, 4, 4)),
    "groups": (lambda: nn.Conv2d(8, 6, 2, groups=2, bias=False), (2, 8, 3, 3)),
}


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protected, "WORTHWHILE", -1)


def held_layer(
    build: Callable[[], nn.Module], free: int, covering: bool, supported: bool
) -> tuple[ProtectedLayer, nn.Module, Tensor]:
    """In the middle of a task, with a scaling of two overlapping tasks that has learnt something; and its pool."""
    module = build().double()
    layer = layer_of(module)
    pool = torch.linalg.qr(torch.randn(layer.dimension, POOL, dtype=torch.float64)).Q
    movable = torch.arange(POOL) >= POOL - free
    anchor = layer.matrix().detach().clone()
    layer.set_matrix(anchor + torch.randn(layer.outputs, layer.dimension).double() @ outside(pool[:, ~movable]))
    scaled = torch.ones(POOL, dtype=torch.bool) if covering else torch.arange(POOL) >= 2
    owned = torch.stack([scaled, scaled & (torch.arange(POOL) != 4)])[:, scaled]
    basis = pool[:, scaled]
    supports = supports_of(anchor[:1], basis, owned, movable[scaled]) if supported else []
    layer.scaling = Scaling.identity(basis, owned, supports, like=anchor)
    layer.scaling.matrix.data = torch.randn_like(layer.scaling.matrix) * (layer.scaling.root > 0)
    layer.held = PartlyHeld(pool, anchor, pool[:, movable]) if free else Held.of(anchor, pool)
    covered = (~movable)[scaled] if covering else None
    layer.product = ProjectedProduct(Projector(pool[:, ~movable]), pool[:, movable] if free else None, covered)
    return layer, module, pool[:, movable]


def outside(basis: Tensor) -> Tensor:
    return torch.eye(len(basis)).double() - basis @ basis.T


def answers(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> list[Tensor]:
    """What it answers, and the gradients of its input, of M and of ``[W | b]``."""
    assert layer.scaling is not None
    x = x.clone().requires_grad_()
    module.zero_grad()
    layer.scaling.matrix.grad = None
    y = layer.forward(module, x)
    y.tanh().sum().backward()
    assert x.grad is not None
    assert layer.scaling.matrix.grad is not None
    return [y.detach(), x.grad, layer.scaling.matrix.grad, layer.gradient()]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("free", [0, 2, POOL])
@pytest.mark.parametrize("covering", [True, False])
def test_it_is_what_the_long_way_gives(name: str, free: int, covering: bool) -> None:
    build, shape = LAYERS[name]
    layer, module, columns = held_layer(build, free, covering, supported=False)
    x = torch.randn(shape, dtype=torch.float64)
    short = answers(layer, module, x)
    projector = layer.product.projector if layer.product else Projector(columns[:, :0])
    assert layer.is_projected()
    along = layer.gradient_along
    layer.product = None
    long = answers(layer, module, x)
    for one, other in zip(short[:3], long[:3], strict=True):
        assert torch.allclose(one, other, atol=1e-10)
    assert torch.allclose(short[3], projector(long[3]), atol=1e-10)
    assert along is not None or not free or not covering or module.bias is not None
    if along is not None:
        assert torch.allclose(along, short[3] @ columns, atol=1e-10)


def test_supports_are_read_from_the_anchor_too() -> None:
    """One output, many columns: what is read are few numbers."""
    layer, module, _ = held_layer(lambda: nn.Linear(12, 1, bias=False), 1, True, supported=True)
    assert layer.scaling is not None
    assert layer.scaling.supports
    x = torch.randn(1, 12, dtype=torch.float64)
    short = answers(layer, module, x)
    projector = layer.product.projector if layer.product else None
    assert projector is not None
    layer.product = None
    long = answers(layer, module, x)
    for one, other in zip(short[:3], long[:3], strict=True):
        assert torch.allclose(one, other, atol=1e-10)
    assert torch.allclose(short[3], projector(long[3]), atol=1e-10)
