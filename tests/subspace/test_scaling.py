"""A scaling of the weight is a scaling of the input, in any order, and none at all while A is 0."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cuber.subspace import Scaling, scaled_input, scaled_weight
from tests.oracles.dense import effective_weight


def scaling(dimension: int, rank: int, dtype: torch.dtype = torch.float32) -> Scaling:
    basis = torch.linalg.qr(torch.randn(dimension, rank, dtype=torch.float64)).Q.to(dtype)
    return Scaling(basis, nn.Parameter(torch.randn(rank, rank, dtype=dtype)))


dimensions = st.integers(1, 12)
ranks = st.lists(st.integers(0, 12), max_size=3)


def scalings_of(dimension: int, ranks: list[int], dtype: torch.dtype = torch.float32) -> list[Scaling]:
    return [scaling(dimension, min(rank, dimension), dtype) for rank in ranks]


@given(dimensions, ranks)
def test_the_scaled_weight_is_the_formula_as_written(dimension: int, ranks: list[int]) -> None:
    weight, made = torch.randn(5, dimension, dtype=torch.float64), scalings_of(dimension, ranks, torch.float64)
    expected = effective_weight(weight, [s.basis for s in made], [s.matrix for s in made])
    assert torch.allclose(scaled_weight(weight, made), expected, atol=1e-10)


@given(dimensions, ranks, st.integers(1, 9))
def test_scaling_the_input_is_scaling_the_weight(dimension: int, ranks: list[int], batch: int) -> None:
    weight, x, made = torch.randn(5, dimension), torch.randn(batch, dimension), scalings_of(dimension, ranks)
    by_weight = x @ scaled_weight(weight, made).T
    by_input = scaled_input(x, made) @ weight.T
    assert (by_weight - by_input).norm() <= 1e-5 * by_weight.norm()


def gradients(output: Tensor, weight: Tensor, made: list[Scaling]) -> list[Tensor]:
    return list(torch.autograd.grad(output.square().sum(), [weight, *(s.matrix for s in made)]))


def test_both_sides_give_the_same_gradients() -> None:
    weight, x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True), torch.randn(3, 8, dtype=torch.float64)
    made = scalings_of(8, [3, 2], torch.float64)
    from_weight = gradients(x @ scaled_weight(weight, made).T, weight, made)
    from_input = gradients(scaled_input(x, made) @ weight.T, weight, made)
    for one, other in zip(from_weight, from_input, strict=True):
        assert torch.allclose(one, other, atol=1e-10)


@pytest.mark.parametrize("function", [scaled_weight, scaled_input])
def test_a_scaling_that_has_learnt_nothing_changes_no_bit(function: object) -> None:
    matrix = torch.randn(7, 9)
    fresh = [Scaling.identity(scaling(9, rank).basis, like=matrix) for rank in (1, 4, 9)]
    assert torch.equal(function(matrix, fresh), matrix)  # type: ignore[operator]


@pytest.mark.parametrize("function", [scaled_weight, scaled_input])
def test_the_order_of_the_selected_tasks_does_not_matter(function: object) -> None:
    matrix, made = torch.randn(7, 9), scalings_of(9, [2, 5, 3])
    results = [function(matrix, list(order)) for order in itertools.permutations(made)]  # type: ignore[operator]
    for other in results[1:]:
        assert (other - results[0]).norm() < 1e-6 * results[0].norm()


def test_a_scaling_follows_its_weight_to_another_precision() -> None:
    moving = scaling(4, 2)
    weight = torch.randn(3, 4, dtype=torch.float64)
    moving.follow(weight)
    assert moving.basis.dtype == moving.matrix.dtype == torch.float64
    assert scaled_weight(weight, [moving]).dtype == torch.float64
