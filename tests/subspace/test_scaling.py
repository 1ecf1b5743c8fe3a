"""A scaling of the weight is a scaling of the input, in any order, and none at all while A is 0."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cuber.subspace import Scaling, scaled_input, scaled_weight, support_of
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


def out_of_one_pool(dimension: int, supported: list[bool], seed: int) -> list[Scaling]:
    generator = torch.Generator().manual_seed(seed)
    pool = torch.linalg.qr(torch.randn(dimension, dimension - 1, dtype=torch.float64, generator=generator)).Q
    made = []
    for thin in supported:
        owned = torch.rand(dimension - 1, generator=generator) < 0.7
        rank = int(owned.sum())
        support = torch.linalg.qr(torch.randn(rank, max(1, rank // 2), dtype=torch.float64, generator=generator)).Q
        matrix = torch.randn(support.shape[1] if thin else rank, rank, dtype=torch.float64, generator=generator)
        made.append(Scaling(pool, nn.Parameter(matrix), support if thin else None, owned))
    return made


@given(st.integers(3, 12), st.lists(st.booleans(), min_size=1, max_size=3), st.integers(0, 2**31))
def test_bases_out_of_one_pool_and_matrices_with_a_support_change_nothing_but_the_work(
    dimension: int, supported: list[bool], seed: int
) -> None:
    made = out_of_one_pool(dimension, supported, seed)
    weight, x = torch.randn(4, dimension, dtype=torch.float64), torch.randn(3, dimension, dtype=torch.float64)
    expected = effective_weight(weight, [s.basis for s in made], [s.learnt().whole() for s in made])
    assert torch.allclose(scaled_weight(weight, made), expected, atol=1e-10)
    assert torch.allclose(scaled_input(x, made) @ weight.T, x @ expected.T, atol=1e-10)


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**31))
def test_learning_within_the_support_is_learning_all_of_it(outputs: int, free: int, seed: int) -> None:
    """Twenty steps of gradient descent, the weight moving along the free columns all the while."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(20, 16, dtype=torch.float64, generator=generator)).Q
    movable = torch.arange(16) < free
    start = torch.randn(outputs, 20, dtype=torch.float64, generator=generator)
    batches = [torch.randn(5, 20, dtype=torch.float64, generator=generator) for _ in range(20)]
    support = support_of(start, basis, movable)
    assert support is not None
    learnt = []
    for chosen in (None, support):
        weight = start.clone()
        one = Scaling.identity(basis, like=weight, support=chosen)
        for x in batches:
            loss = (scaled_input(x, [one]) @ weight.T).tanh().sum()
            (gradient,) = torch.autograd.grad(loss, [one.matrix])
            one.matrix.data -= 0.1 * gradient
            weight = (
                weight + 0.1 * torch.randn(outputs, free, dtype=torch.float64, generator=moves(x)) @ basis[:, movable].T
            )
        learnt.append(one.learnt())
    assert learnt[0].whole().norm() > 0
    assert torch.allclose(learnt[0].whole(), learnt[1].whole(), atol=1e-10)
    assert learnt[1].nbytes <= learnt[0].nbytes


def moves(x: Tensor) -> torch.Generator:
    """The same moves whenever a batch comes by."""
    return torch.Generator().manual_seed(int(1e6 * float(x[0, 0].abs())))


def test_a_support_that_saves_nothing_is_not_used() -> None:
    basis = torch.eye(10)[:, :8]
    assert support_of(torch.randn(5, 10), basis, torch.zeros(8, dtype=torch.bool)) is None
    assert support_of(torch.randn(3, 10), basis, torch.arange(8) < 2) is None
    assert support_of(torch.randn(3, 10), basis, torch.arange(8) < 1) is not None
