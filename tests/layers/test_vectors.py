"""A layer's matrix times its input vectors is its output, and its weight gradient is delta' X: exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cuber.layers import BACKENDS, observed
from cuber.subspace import Anchor, Constraint
from tests.layers.table import LayerCase, convolutions, layers, output_rows, protected, vector_rows
from tests.oracles.patches import patches

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


@layers
def test_matrix_times_vectors_is_the_output(case: LayerCase) -> None:
    module, x = case.layer(), case.input()
    layer = protected(module)
    outputs = output_rows(case, module, module(x).detach())
    vectors = vector_rows(case, module, layer.vectors(module, x))
    for rows, inputs, matrix in zip(outputs, vectors, layer.matrix().detach().chunk(len(outputs)), strict=True):
        assert torch.equal(inputs @ matrix.T, rows)


@layers
def test_the_weight_gradient_is_delta_transposed_times_the_vectors(case: LayerCase) -> None:
    module, x = case.layer(), case.input()
    layer = protected(module)
    output = module(x)
    delta = torch.randint(-3, 4, output.shape).double()
    output.backward(delta)
    expected = [
        rows.T @ inputs
        for rows, inputs in zip(
            output_rows(case, module, delta), vector_rows(case, module, layer.vectors(module, x)), strict=True
        )
    ]
    assert torch.equal(layer.gradient(), torch.cat(expected))


@layers
def test_a_bias_is_the_weight_of_an_input_that_is_always_1(case: LayerCase) -> None:
    module = case.layer()
    layer, vectors = protected(module), protected(module).vectors(module, case.input())
    assert vectors.shape[1] == layer.dimension == layer.matrix().shape[1]
    assert layer.with_bias == (module.bias is not None)
    if module.bias is not None:
        assert torch.equal(vectors[:, -1], torch.ones(len(vectors)).double())
        assert torch.equal(layer.matrix()[:, -1], module.bias)


@convolutions
def test_patches_are_those_gathered_one_number_at_a_time(case: LayerCase) -> None:
    module, x = case.layer(), case.input()
    output = module(x)
    batch = x if case.batched else x.unsqueeze(0)
    spatial = output.shape[2:] if case.batched else output.shape[1:]
    expected = patches(module, batch, spatial).flatten(0, 2)
    vectors = protected(module).vectors(module, x)
    assert torch.equal(vectors[:, : expected.shape[1]], expected)


@layers
def test_splitting_a_matrix_undoes_joining_it(case: LayerCase) -> None:
    module = case.layer()
    layer = protected(module)
    parts = layer.split(layer.matrix())
    for part, parameter in zip(parts, layer.parameters, strict=True):
        assert torch.equal(part, parameter)
    changed = layer.matrix().detach() + 1
    layer.set_matrix(changed)
    assert torch.equal(layer.matrix(), changed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_vectors_come_in_the_precision_of_the_input(dtype: torch.dtype) -> None:
    module = nn.Conv2d(1, 2, 2, padding=1, padding_mode="reflect").to(dtype)
    assert protected(module).vectors(module, torch.randn(1, 1, 4, 4).to(dtype)).dtype == dtype


@layers
def test_a_gradient_is_projected_however_it_lies(case: LayerCase) -> None:
    four = case.layer().weight.dim() == 4
    for lies in [torch.contiguous_format] + [torch.channels_last] * four:
        module = case.layer().to(memory_format=lies)
        layer = protected(module)
        module(case.input()).square().sum().backward()
        for rank in (0, 1, layer.dimension // 2, layer.dimension):
            basis = torch.linalg.qr(torch.randn(layer.dimension, rank).double()).Q
            gradient, everywhere = layer.gradient().clone(), torch.ones(rank, dtype=torch.bool)
            layer.constraint = Constraint(basis, everywhere, ~everywhere, Anchor.of(layer.matrix().detach(), basis))
            expected = gradient - gradient @ basis @ basis.T
            for backend in BACKENDS.values():
                layer.set_gradient(gradient)
                layer.backend = backend(layer)
                layer.backend.project_gradient()
                assert torch.allclose(layer.gradient(), expected, atol=1e-9 * float(expected.abs().max() + 1))


@pytest.mark.parametrize("output_size", [(8, 6), (9, 6), (2, 5, 9, 7)])
def test_an_output_size_given_with_the_call_of_a_transposed_convolution_counts(output_size: tuple[int, ...]) -> None:
    module = nn.ConvTranspose2d(3, 5, 2, stride=2, padding=1, groups=1, bias=True).double()
    x = torch.randn(2, 3, 5, 4).double()
    layer, seen = protected(module), []
    expected = module(x, output_size=output_size).detach()
    layer.attach()
    with observed([layer], lambda layer, module, x: seen.append(layer.vectors(module, x))):
        output = module(x, output_size)
    assert torch.equal(output, expected)
    assert torch.allclose(seen[0] @ layer.matrix().mT, expected.movedim(1, -1).flatten(0, -2))


def test_the_conv1d_of_transformers_is_found_by_its_name() -> None:
    transformers = pytest.importorskip("transformers.pytorch_utils")
    module = transformers.Conv1D(7, 5)
    x = torch.randn(2, 3, 5)
    layer = protected(module)
    assert torch.allclose(layer.vectors(module, x) @ layer.matrix().mT, module(x).flatten(0, 1), atol=1e-6)
