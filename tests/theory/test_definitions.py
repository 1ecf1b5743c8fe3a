"""Definitions 1 and 2 against dense matrices, and when the second implies the first."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuber.errors import CuberError
from cuber.subspace import PrunedGradient
from cuber.theory import positive_correlation, sufficient_projection
from tests.oracles.dense import projector

seeds = st.integers(0, 2**31)


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


@given(seeds, st.integers(0, 6))
def test_the_definitions_are_those_of_plain_matrices(seed: int, rank: int) -> None:
    old, new, directions = drawn(seed, (3, 6), (3, 6), (6, rank))
    basis = torch.linalg.qr(directions).Q
    assert sufficient_projection(new, basis) == pytest.approx(float((new @ projector(basis)).norm() / new.norm()))
    assert positive_correlation(old, new) == pytest.approx(float((old * new).sum() / old.norm() / new.norm()))
    assert positive_correlation(PrunedGradient.of(old, 1.0), new) == positive_correlation(old, new)


@given(seeds, st.integers(1, 6))
def test_positive_correlation_implies_sufficient_projection_if_the_old_gradient_lies_in_the_subspace(
    seed: int, rank: int
) -> None:
    old, new, directions = drawn(seed, (3, 6), (3, 6), (6, rank))
    basis = torch.linalg.qr(directions).Q
    inside = old @ projector(basis)
    assert positive_correlation(inside, new) <= sufficient_projection(new, basis) + 1e-12


def test_without_that_it_implies_nothing() -> None:
    """The old and the new gradient are the same, and orthogonal to the subspace."""
    gradient, basis = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0], [1.0]])
    assert positive_correlation(gradient, gradient) == 1
    assert sufficient_projection(gradient, basis) == 0


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_a_subspace_that_holds_most_of_the_old_gradient_leaves_a_gap_of_what_it_lacks(share: float) -> None:
    """cosine <= ratio + the norm outside: up to 0.17 more for a basis with 97 % of the energy."""
    old, basis = torch.tensor([[math.sqrt(share), math.sqrt(1 - share)]]).double(), torch.eye(2).double()[:, :1]
    outside = torch.tensor([[0.0, 1.0]]).double()
    assert sufficient_projection(outside, basis) == 0
    assert positive_correlation(old, outside) == pytest.approx(math.sqrt(1 - share))


def test_what_does_not_fit_together_is_told_so() -> None:
    with pytest.raises(CuberError, match=r"the gradient is 2 x 3 and the basis 4 x 1: give out x d and d x rank"):
        sufficient_projection(torch.ones(2, 3), torch.ones(4, 1))
    with pytest.raises(CuberError, match=r"the old gradient is 3 and the new one 2 x 3: they must be alike"):
        positive_correlation(torch.ones(3), torch.ones(2, 3))


def test_nothing_is_correlated_with_no_gradient() -> None:
    nothing, something, basis = torch.zeros(2, 3), torch.ones(2, 3), torch.eye(3)[:, :2]
    assert positive_correlation(nothing, something) == positive_correlation(something, nothing) == 0
    assert sufficient_projection(nothing, basis) == 0
