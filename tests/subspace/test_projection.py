"""All ways to project give the same: by the basis, by its complement, in place, or from the inputs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cuber.subspace import Projector, complement
from tests.oracles.dense import outside


def orthonormal(dimension: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(dimension, rank, dtype=torch.float64)).Q.to(dtype)


@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 6), st.sampled_from([torch.float32, torch.float64]))
def test_the_projector_removes_what_the_dense_projector_removes(
    d: int, rank: int, rows: int, dtype: torch.dtype
) -> None:
    basis = orthonormal(d, min(rank, d), dtype)
    matrix = torch.randn(rows, d, dtype=dtype)
    projector = Projector(basis)
    projected = projector.outside(matrix)
    assert projected.dtype == dtype
    assert (projected - outside(matrix, basis)).norm() <= 1e-5 * matrix.norm()
    assert (projected + projector.inside(matrix) - matrix).norm() <= 1e-5 * matrix.norm()
    projector.project_(in_place := matrix.clone())
    assert (projected - in_place).norm() <= 1e-5 * matrix.norm()


@given(st.integers(1, 20), st.integers(0, 20))
def test_projecting_twice_is_projecting_once(dimension: int, rank: int) -> None:
    project = Projector(orthonormal(dimension, min(rank, dimension))).outside
    once = project(torch.randn(5, dimension))
    assert (project(once) - once).norm() <= 1e-5 * (once.norm() + 1)


@pytest.mark.parametrize("rank", [0, 1, 3, 5, 6, 9, 10])
def test_nothing_inside_is_left_and_nothing_outside_changes(rank: int) -> None:
    basis = orthonormal(10, rank)
    rest = complement(basis)
    assert rest.shape == (10, 10 - rank)
    both = torch.cat([basis, rest], dim=1)
    assert torch.allclose(both.T @ both, torch.eye(10), atol=1e-6)
    inside, untouched = torch.randn(4, rank) @ basis.T, torch.randn(4, 10 - rank) @ rest.T
    project = Projector(basis).outside
    assert project(inside).norm() < 1e-6 * (inside.norm() + 1)
    assert torch.allclose(project(untouched), untouched, atol=1e-6)


def test_the_union_of_overlapping_subspaces_is_removed_once_where_a_sum_would_flip_the_sign() -> None:
    pool, owners = orthonormal(6, 3), torch.tensor([[True, True, False], [False, True, True]])
    gradient = torch.randn(2, 6)
    union = Projector(pool[:, owners.any(0)]).outside(gradient)
    assert (union - outside(gradient, pool)).norm() < 1e-5
    summed = gradient - sum(gradient @ pool[:, own] @ pool[:, own].T for own in owners)
    assert torch.allclose(summed @ pool[:, 1], -gradient @ pool[:, 1], atol=1e-6)
    assert (union @ pool).norm() < 1e-6


@pytest.mark.parametrize("rank", [1, 4, 7, 11])
def test_projecting_the_inputs_of_a_linear_layer_projects_its_gradient(rank: int) -> None:
    layer, x = nn.Linear(12, 5, bias=False), torch.randn(8, 12)
    project = Projector(orthonormal(12, rank)).outside
    layer(x).square().sum().backward()
    delta = 2 * layer(x).detach()
    from_gradient, from_inputs = project(layer.weight.grad), delta.T @ project(x)
    assert (from_gradient - from_inputs).norm() < 1e-5 * layer.weight.grad.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_gradient_of_another_precision_keeps_its_precision(dtype: torch.dtype) -> None:
    basis = orthonormal(6, 2)
    gradient = torch.randn(3, 6).to(dtype)
    projected = Projector(basis).outside(gradient)
    assert projected.dtype == dtype
    assert (projected.double() - outside(gradient, basis)).norm() < 1e-2 * gradient.double().norm()
    Projector(basis).project_(gradient)
    assert torch.equal(gradient, projected)
