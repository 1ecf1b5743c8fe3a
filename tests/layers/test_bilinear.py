"""nn.Bilinear: its matrix times the products of both inputs is its output, with any weight and any leading shape."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cuber.layers import observed, sample_gradients, uses_of
from cuber.subspace import Scaling
from tests.layers.table import protected

SHAPES = {"one vector": (), "batch": (4,), "sequence": (4, 3)}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
biases = pytest.mark.parametrize("bias", [True, False])


def inputs(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randint(-4, 5, (*shape, n), generator=generator).double() for n in (5, 3))  # type: ignore[return-value]


def module(bias: bool) -> nn.Bilinear:
    torch.manual_seed(0)
    made = nn.Bilinear(5, 3, 7, bias=bias).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randint(-4, 5, parameter.shape))
    return made


@shapes
@biases
def test_matrix_times_vectors_is_the_output(shape: tuple[int, ...], bias: bool) -> None:
    bilinear, (one, other) = module(bias), inputs(shape)
    expected = bilinear(one, other).detach()
    layer, seen = protected(bilinear), []
    layer.attach()
    with observed([layer], lambda layer, module, x: seen.append(layer.vectors(module, x))):
        output = bilinear(input2=other, input1=one)
    assert torch.equal(output, expected)
    assert torch.equal(seen[0] @ layer.matrix().detach().mT, expected.reshape(-1, 7))


@shapes
@pytest.mark.parametrize("backend", ["fast", "plain"])
def test_with_a_scaling_it_computes_with_the_effective_weight(shape: tuple[int, ...], backend: str) -> None:
    bilinear, (one, other) = module(True), inputs(shape)
    layer = protected(bilinear, backend)
    layer.attach()
    basis = torch.linalg.qr(torch.randn(layer.dimension, 4).double()).Q
    layer.scaling = Scaling(basis, torch.ones(1, 4, dtype=torch.bool), [], bilinear.weight, torch.randn(4, 4).double())
    weight, bias = layer.split(layer.effective_matrix())
    expected = torch.einsum("...i,oij,...j->...o", one, weight, other) + bias
    assert torch.allclose(bilinear(one, other), expected)


def test_gradients_of_single_samples_are_those_of_autograd() -> None:
    bilinear, (one, other) = module(True), inputs((4, 3))
    layer, target = protected(bilinear), torch.randn(4, 3, 7).double()
    uses = uses_of([layer], lambda: (bilinear(one, other) * target).sum() / 4, 4)
    found = sample_gradients(uses["layer"], slice(None))
    for sample in range(4):
        bilinear.zero_grad()
        (bilinear(one[sample], other[sample]) * target[sample]).sum().backward()
        assert torch.allclose(found[sample], layer.gradient())
