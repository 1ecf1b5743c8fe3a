"""Projecting by the pool, by its complement, densely, or from the input side: all the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cuber.subspace import Projector
from cuber.subspace.projection import complement
from tests.oracles.dense import outside


def orthonormal(dimension: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(dimension, rank, dtype=torch.float64)).Q.to(dtype)


@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 6), st.sampled_from([torch.float32, torch.float64]))
def test_it_takes_out_what_the_dense_projector_takes_out(d: int, rank: int, rows: int, dtype: torch.dtype) -> None:
    basis = orthonormal(d, min(rank, d), dtype)
    matrix = torch.randn(rows, d, dtype=dtype)
    projected = Projector(basis)(matrix)
    assert projected.dtype == dtype
    assert (projected - outside(matrix, basis)).norm() <= 1e-5 * matrix.norm()
    Projector(basis).in_place(in_place := matrix.clone())
    assert (projected - in_place).norm() <= 1e-5 * matrix.norm()


@given(st.integers(1, 20), st.integers(0, 20))
def test_projecting_twice_is_projecting_once(dimension: int, rank: int) -> None:
    project = Projector(orthonormal(dimension, min(rank, dimension)))
    once = project(torch.randn(5, dimension))
    assert (project(once) - once).norm() <= 1e-5 * (once.norm() + 1)


@pytest.mark.parametrize("rank", [0, 1, 3, 5, 6, 9, 10])
def test_nothing_is_left_inside_and_nothing_outside_is_touched(rank: int) -> None:
    basis = orthonormal(10, rank)
    rest = complement(basis)
    assert rest.shape == (10, 10 - rank)
    both = torch.cat([basis, rest], dim=1)
    assert torch.allclose(both.T @ both, torch.eye(10), atol=1e-6)
    inside, untouched = torch.randn(4, rank) @ basis.T, torch.randn(4, 10 - rank) @ rest.T
    project = Projector(basis)
    assert project(inside).norm() < 1e-6 * (inside.norm() + 1)
    assert torch.allclose(project(untouched), untouched, atol=1e-6)


def test_a_union_of_overlapping_subspaces_is_taken_out_once_where_a_sum_would_flip_the_sign() -> None:
    pool, owners = orthonormal(6, 3), torch.tensor([[True, True, False], [False, True, True]])
    gradient = torch.randn(2, 6)
    union = Projector(pool[:, owners.any(0)])(gradient)
    assert (union - outside(gradient, pool)).norm() < 1e-5
    summed = gradient - sum(gradient @ pool[:, own] @ pool[:, own].T for own in owners)
    assert torch.allclose(summed @ pool[:, 1], -gradient @ pool[:, 1], atol=1e-6)
    assert (union @ pool).norm() < 1e-6


@pytest.mark.parametrize("rank", [1, 4, 7, 11])
def test_projecting_the_inputs_of_a_linear_layer_is_projecting_its_gradient(rank: int) -> None:
    layer, x = nn.Linear(12, 5, bias=False), torch.randn(8, 12)
    project = Projector(orthonormal(12, rank))
    layer(x).square().sum().backward()
    delta = 2 * layer(x).detach()
    from_gradient, from_inputs = project(layer.weight.grad), delta.T @ project(x)
    assert (from_gradient - from_inputs).norm() < 1e-5 * layer.weight.grad.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_gradient_of_another_precision_keeps_its_own(dtype: torch.dtype) -> None:
    basis = orthonormal(6, 2)
    gradient = torch.randn(3, 6).to(dtype)
    projected = Projector(basis)(gradient)
    assert projected.dtype == dtype
    assert (projected.double() - outside(gradient, basis)).norm() < 1e-2 * gradient.double().norm()


@given(st.integers(2, 12), st.integers(1, 11), st.integers(1, 6), st.integers(0, 2**31))
def test_what_is_inside_need_not_be_asked_twice(d: int, rank: int, rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(d, min(rank, d), dtype=torch.float64, generator=generator)).Q
    projector, matrix = Projector(basis), torch.randn(rows, d, dtype=torch.float64, generator=generator)
    assert torch.allclose(projector.knowing(matrix, matrix @ basis), projector(matrix), atol=1e-12)


@given(st.integers(2, 12), st.integers(1, 12), st.integers(3, 6), st.integers(0, 2**31), st.floats(1, 1e3))
def test_two_probes_tell_what_is_outside_from_what_is_not(d: int, rank: int, rows: int, seed: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(d, min(rank, d), generator=generator)).Q
    projector = Projector(basis)
    outside = projector(torch.randn(rows, d, generator=generator))
    assert projector.passes(*(outside @ probe for probe in projector.probes))
    inside = size * torch.randn(rows, basis.shape[1], generator=generator) @ basis.T
    assert not projector.passes(*((outside + inside) @ probe for probe in projector.probes))
