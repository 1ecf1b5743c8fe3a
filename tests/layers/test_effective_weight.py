"""The forward pass with scalings computes with the effective weight, in both back ends."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber.layers import BACKENDS, ProtectedLayer
from cuber.subspace import Scaling
from tests.layers.table import LayerCase, layers, protected
from tests.oracles.dense import effective_weight

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
backends = pytest.mark.parametrize("backend", BACKENDS)


def give_scalings(layer: ProtectedLayer, *, size: float) -> None:
    """Scale two overlapping subspaces of the layer's inputs."""
    basis = torch.linalg.qr(torch.randn(layer.dimension, min(4, layer.dimension), dtype=torch.float64)).Q
    columns = torch.arange(basis.shape[1])
    owned = torch.stack([columns < 3, columns >= 1])
    layer.scaling = Scaling(basis, owned, [], like=layer.parameter.detach(), train=True)
    layer.scaling.matrix.data = size * torch.randn_like(layer.scaling.matrix)


def effective(layer: ProtectedLayer, weight: Tensor) -> Tensor:
    assert layer.scaling is not None
    return effective_weight(weight, [layer.scaling.basis], [layer.scaling.dense()])


def dense_output(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> Tensor:
    """Return the output of the plain module with the effective weight in place of its own."""
    kept = layer.matrix().detach().clone()
    layer.set_matrix(effective(layer, kept))
    output = type(module).forward(module, x).detach()  # type: ignore[operator]
    layer.set_matrix(kept)
    return output


@layers
def test_a_scaled_layer_computes_with_the_effective_weight(case: LayerCase) -> None:
    module, x = case.layer(), case.input()
    for backend in BACKENDS:
        layer = protected(module, backend)
        give_scalings(layer, size=1.0)
        expected = dense_output(layer, module, x)
        assert not torch.allclose(expected, type(module).forward(module, x))
        assert torch.allclose(layer.forward(module, x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bias", [True, False], ids=["with bias", "without bias"])
def test_scaling_the_inputs_and_scaling_the_weight_give_the_same_outputs_and_gradients(bias: bool) -> None:
    module = nn.Linear(6, 20, bias=bias)
    layer = protected(module)
    give_scalings(layer, size=0.5)
    x = torch.randn(64, 6)
    together = layer.forward(module, x)  # more rows than outputs: the weight is scaled
    one_by_one = torch.cat([layer.forward(module, row.unsqueeze(0)) for row in x])  # fewer: the inputs are
    assert (together - one_by_one).norm() < 1e-5 * together.norm()
    assert layer.scaling is not None
    trained = [*layer.parameters, layer.scaling.matrix]
    from_weight = torch.autograd.grad(together.square().mean(), trained)
    from_input = torch.autograd.grad(one_by_one.square().mean(), trained)
    for one, other in zip(from_weight, from_input, strict=True):
        assert (one - other).norm() < 1e-5 * one.norm()


@layers
def test_with_scalings_of_0_the_output_is_that_of_the_plain_layer_to_the_bit(case: LayerCase) -> None:
    module, x = case.build(), torch.randn(case.shape)
    for backend in BACKENDS:
        layer = protected(module, backend)
        give_scalings(layer, size=0.0)
        scaled, plain = layer.forward(module, x), type(module).forward(module, x)  # type: ignore[operator]
        if backend == "fast" and layer.rule.multiplies and layer.with_bias and x[..., 0].numel() <= layer.outputs:
            # The bias is multiplied by an input of 1 here: another kernel, the same result but for rounding.
            assert torch.allclose(scaled, plain, atol=1e-6)
        else:
            assert torch.equal(scaled, plain)


@backends
def test_a_frozen_bias_is_added_without_scaling(backend: str) -> None:
    module = nn.Linear(6, 20)
    module.bias.requires_grad_(False)
    layer = protected(module, backend)
    assert layer.dimension == 6
    give_scalings(layer, size=1.0)
    for count in (3, 50):
        x = torch.randn(count, 6)
        expected = functional.linear(x, effective(layer, module.weight), module.bias)
        assert torch.allclose(layer.forward(module, x), expected, atol=1e-5)
