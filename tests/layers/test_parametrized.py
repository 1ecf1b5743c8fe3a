"""Weights that are computed from other parameters: the layer is the computed weight, and its gradient that of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

from cuber.layers import ProtectedLayer, scan
from cuber.layers.parametrized import ParametrizedLayer
from cuber.layers.rule import rule_for


class Doubled(nn.Module):
    """Any weight can be had."""

    def forward(self, original: Tensor) -> Tensor:
        return 2 * original

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight / 2


class Shifted(nn.Module):
    """Has a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(1).double())

    def forward(self, original: Tensor) -> Tensor:
        return original + self.shift

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight - self.shift


class Symmetric(nn.Module):
    """Has no right inverse."""

    def forward(self, original: Tensor) -> Tensor:
        return original + original.T


class Hidden(Doubled):
    """Has a right inverse that cannot be differentiated."""

    @torch.no_grad()
    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight / 2


class Dropped(Doubled):
    """Drops random entries of the weight in training."""

    def forward(self, original: Tensor) -> Tensor:
        return functional.dropout(super().forward(original), 0.2, self.training)


class Counted(Doubled):
    """Changes a buffer with each pass in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, original: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        return super().forward(original)


class Drifting(Doubled):
    """Computes another weight in the second pass in training."""

    passes = 0

    def forward(self, original: Tensor) -> Tensor:
        self.passes += self.training
        return (2 + 0.1 * (self.passes > 1)) * original


def doubled_and_normed(module: nn.Module) -> nn.Module:
    parametrizations.weight_norm(module)
    return parametrize.register_parametrization(module, "weight", Doubled())


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm": parametrizations.weight_norm,
    "weight norm of columns": lambda module: parametrizations.weight_norm(module, dim=1),
    "weight norm of all": lambda module: parametrizations.weight_norm(module, dim=None),  # type: ignore[arg-type]
    "own": lambda module: parametrize.register_parametrization(module, "weight", Doubled()),
    "own with a parameter": lambda module: parametrize.register_parametrization(module, "weight", Shifted()),
    "two": doubled_and_normed,
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(5, 4), (6, 5)),
    "Linear without bias": (lambda: nn.Linear(5, 4, bias=False), (6, 5)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 5, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 3, 3)),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
layers = pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS.keys())


def found(module: nn.Module) -> ProtectedLayer:
    (layer,) = scan(module).layers.values()
    assert isinstance(layer, ParametrizedLayer)
    return layer


@ways
@layers
def test_the_computed_weight_is_a_matrix_that_acts_on_the_vectors(
    way: Callable[[nn.Module], nn.Module], build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    module, x = way(build().double()), torch.randn(shape).double()
    layer, output = found(module), module(x)
    rows = layer.vectors(module, x) @ layer.matrix().mT
    assert torch.allclose(rows, output.movedim(1, -1).reshape(rows.shape), atol=1e-12)


@ways
@layers
def test_gradients_are_those_of_the_weight_as_a_parameter(
    way: Callable[[nn.Module], nn.Module], build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    plain = build().double()
    x = torch.randn(shape).double()
    module = way(build().double())
    layer = found(module)
    expected = ProtectedLayer("layer", [plain], rule_for(plain))
    places = [parameter.data_ptr() for parameter in module.parameters()]
    layer.set_matrix(expected.matrix().detach())
    assert [parameter.data_ptr() for parameter in module.parameters()] == places
    assert torch.allclose(layer.matrix(), expected.matrix(), atol=1e-12)
    for each in (plain, module):
        (each(x).sin().sum() * 3).backward()
    assert torch.allclose(layer.gradient(), expected.gradient(), atol=1e-10)
    other = torch.randn_like(expected.matrix())
    layer.set_gradient(other)
    assert torch.allclose(layer.gradient(), other, atol=1e-10)
    layer.add_to_gradient(2 * other)
    assert torch.allclose(layer.gradient(), 3 * other, atol=1e-10)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_rows_of_zeros_keep_the_direction_that_weight_norm_gives_them(dim: Any) -> None:
    torch.manual_seed(0)
    module = parametrizations.weight_norm(nn.Linear(5, 4).double(), dim=dim)
    layer, weights = found(module), module.parametrizations.weight
    for lengths in (torch.ones_like(weights.original0), torch.zeros_like(weights.original0)):
        lengths.view(-1)[0] = 0
        weights.original0.data.copy_(lengths)
        directions, expected = weights.original1.clone(), layer.matrix().detach()
        layer.set_matrix(expected)
        assert torch.allclose(layer.matrix(), expected, atol=1e-12)
        zeros = (expected[:, :-1] == 0).all(1 - (dim or 0), keepdim=True).expand(4, 5)
        assert zeros.any()
        assert torch.equal(weights.original1[zeros], directions[zeros])
        module.zero_grad()
        (module(torch.randn(6, 5).double()).sin().sum() * 3).backward()
        gradient = layer.gradient()[:, :-1]
        assert gradient.isfinite().all()
        along = (gradient * directions).sum_to_size(weights.original0.shape)[lengths == 0]
        own = (weights.original0.grad * torch.norm_except_dim(directions, 2, -1 if dim is None else dim))[lengths == 0]
        assert torch.allclose(along, own, atol=1e-10)


def partly_frozen(module: nn.Module) -> nn.Module:
    parametrizations.weight_norm(module)
    module.parametrizations.weight.original0.requires_grad_(False)
    return module


REFUSED: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "spectral norm": (parametrizations.spectral_norm, "_SpectralNorm, whose right_inverse is not for every weight"),
    "orthogonal": (parametrizations.orthogonal, "_Orthogonal, whose right_inverse is not for every weight"),
    "no inverse": (
        lambda module: parametrize.register_parametrization(module, "weight", Symmetric()),
        "Symmetric, which has no right_inverse",
    ),
    "inverse without derivative": (
        lambda module: parametrize.register_parametrization(module, "weight", Hidden()),
        "Hidden, whose right_inverse is not for every weight",
    ),
    **{
        kind.__name__: (
            lambda module, kind=kind: parametrize.register_parametrization(module, "weight", kind()),
            f"{kind.__name__}, which computes another weight in training",
        )
        for kind in (Dropped, Counted, Drifting)
    },
    "partly frozen": (partly_frozen, "originals that are frozen or tied"),
    "bias": (
        lambda module: parametrize.register_parametrization(module, "bias", Doubled()),
        "its bias is parametrized",
    ),
    "old weight norm": (torch.nn.utils.weight_norm, "use torch.nn.utils.parametrizations instead"),
    "old spectral norm": (torch.nn.utils.spectral_norm, "use torch.nn.utils.parametrizations instead"),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize(("way", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_set_to_every_weight_is_uncovered_with_the_reason(
    way: Callable[[nn.Module], nn.Module], reason: str
) -> None:
    torch.manual_seed(0)
    module = way(nn.Linear(3, 3))
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    state = torch.get_rng_state()
    covered = scan(module)
    assert torch.equal(torch.get_rng_state(), state)
    assert not covered.layers
    assert any(reason in why for why in covered.uncovered.values())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in module.named_buffers())


def test_a_parametrized_weight_of_a_recurrent_network_is_uncovered_and_the_others_are_not() -> None:
    covered = scan(parametrizations.weight_norm(nn.LSTM(3, 4), "weight_hh_l0"))
    assert list(covered.layers) == ["weight_ih_l0"]
    assert any("LSTM, which has several" in why for why in covered.uncovered.values())
