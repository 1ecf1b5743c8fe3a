"""The forward pass with scalings: the effective weight, from whichever side is shorter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber.layers import ProtectedLayer
from cuber.subspace import Scaling
from tests.layers.table import LayerCase, layers, protected
from tests.oracles.dense import effective_weight

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def give_scalings(layer: ProtectedLayer, *, size: float) -> None:
    """Two scalings on overlapping subspaces of the layer's inputs."""
    like = layer.matrix().detach()
    basis = torch.linalg.qr(torch.randn(layer.dimension, min(4, layer.dimension), dtype=torch.float64)).Q
    columns = torch.arange(basis.shape[1])
    layer.scaling = Scaling.identity(basis, torch.stack([columns < 3, columns >= 1]), like=like)
    layer.scaling.matrix.data = size * torch.randn_like(layer.scaling.matrix)


def effective(layer: ProtectedLayer, weight: Tensor) -> Tensor:
    assert layer.scaling is not None
    return effective_weight(weight, [layer.scaling.basis], [layer.scaling.dense()])


def dense_output(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> Tensor:
    """The plain module's own forward pass, on a copy of it that holds the effective weight."""
    kept = layer.matrix().detach().clone()
    layer.set_matrix(effective(layer, kept))
    output = type(module).forward(module, x).detach()  # type: ignore[operator]
    layer.set_matrix(kept)
    return output


@layers
def test_a_scaled_layer_computes_what_a_plain_one_does_with_the_effective_weight(case: LayerCase) -> None:
    module, x = case.layer(), case.input()
    layer = protected(module)
    give_scalings(layer, size=1.0)
    expected = dense_output(layer, module, x)
    assert not torch.allclose(expected, type(module).forward(module, x))
    assert torch.allclose(layer.forward(module, x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bias", [True, False], ids=["with bias", "without bias"])
def test_few_inputs_and_many_give_the_same_answers_and_gradients(bias: bool) -> None:
    module = nn.Linear(6, 20, bias=bias)
    layer = protected(module)
    give_scalings(layer, size=0.5)
    x = torch.randn(64, 6)
    together = layer.forward(module, x)
    one_by_one = torch.cat([layer.forward(module, row.unsqueeze(0)) for row in x])  # 1 < 20: the inputs are scaled
    assert (together - one_by_one).norm() < 1e-5 * together.norm()
    assert layer.scaling is not None
    trained = [*layer.parameters, layer.scaling.matrix]
    from_weight = torch.autograd.grad(together.square().mean(), trained)
    from_input = torch.autograd.grad(one_by_one.square().mean(), trained)
    for one, other in zip(from_weight, from_input, strict=True):
        assert (one - other).norm() < 1e-5 * one.norm()


@layers
def test_with_scalings_of_0_every_bit_is_that_of_the_plain_layer(case: LayerCase) -> None:
    module, x = case.build(), torch.randn(case.shape)
    layer = protected(module)
    plain = module(x)
    give_scalings(layer, size=0.0)
    scaled = layer.forward(module, x)
    if isinstance(module, nn.Linear) and module.bias is not None and x[..., 0].numel() <= module.out_features:
        # The input that is always 1 goes through the product here: another kernel, the same numbers.
        assert torch.allclose(scaled, plain, atol=1e-6)
    else:
        assert torch.equal(scaled, plain)


def test_a_frozen_bias_is_added_as_it_is_from_either_side() -> None:
    module = nn.Linear(6, 20)
    module.bias.requires_grad_(False)
    layer = protected(module)
    assert layer.dimension == 6
    give_scalings(layer, size=1.0)
    for count in (3, 50):
        x = torch.randn(count, 6)
        expected = functional.linear(x, effective(layer, module.weight), module.bias)
        assert torch.allclose(layer.forward(module, x), expected, atol=1e-5)
