"""The Gram matrix, accumulated in pieces, gives the subspaces that the SVD of all vectors gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cuber.subspace import Gram, Pool
from tests.oracles.bases import subspace
from tests.oracles.dense import largest_angle

shapes = st.tuples(st.integers(1, 24), st.integers(1, 40), st.integers(1, 24), st.integers(0, 10**6))


def low_rank(dimension: int, count: int, rank: int, seed: int) -> Tensor:
    """count x dimension with the given rank (or less, where it cannot be), energies falling."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(count, rank, generator=generator, dtype=torch.float64)
    right = torch.randn(rank, dimension, generator=generator, dtype=torch.float64)
    return left @ (right * 0.8 ** torch.arange(rank, dtype=torch.float64).unsqueeze(1))


def gram_of(vectors: Tensor, pieces: int = 1) -> Gram:
    gram = Gram(vectors.shape[1])
    for piece in vectors.chunk(pieces):
        gram.add(piece)
    return gram


@given(shapes, st.sampled_from([0.5, 0.9, 0.97, 0.999]))
def test_gram_and_eigh_give_the_rank_and_the_subspace_of_the_svd(shape: tuple[int, ...], threshold: float) -> None:
    vectors = low_rank(*shape)
    pool = Pool.empty(shape[0], like=vectors)
    pool.add_task(gram_of(vectors), threshold)
    expected = subspace(vectors.T, threshold)
    assert pool.size == expected.shape[1]
    assert largest_angle(pool.basis, expected) < 1e-4


@given(shapes)
def test_all_residual_directions_of_low_rank_data_span_what_the_svd_spans(shape: tuple[int, ...]) -> None:
    vectors = low_rank(*shape)
    residual = gram_of(vectors).residual(vectors.new_zeros(shape[0], 0))
    energies, directions = residual.energies, residual.directions(len(residual.energies))
    values = torch.linalg.svdvals(vectors)
    rank = min(shape[:3])
    assert torch.allclose(energies[:rank], values[:rank].square()[: len(energies)], rtol=1e-6, atol=1e-9 * energies[0])
    assert torch.allclose(directions.T @ directions, torch.eye(len(energies)).double(), atol=1e-5)


@given(shapes, st.integers(0, 40), st.integers(1, 5), st.integers(1, 5))
def test_pieces_of_any_size_are_the_whole(shape: tuple[int, ...], cut: int, one: int, other: int) -> None:
    vectors = low_rank(*shape)
    whole = gram_of(vectors)
    first = Gram(shape[0])
    for piece in (*vectors[:cut].chunk(one), *vectors[cut:].chunk(other)):
        first.add(piece)
    assert first.count == whole.count == len(vectors)
    assert first.energy == pytest.approx(whole.energy, rel=1e-12)
    pools = []
    for gram in (first, whole):
        pool = Pool.empty(shape[0], like=vectors)
        pool.add_task(gram, 0.95)
        pools.append(pool)
    assert pools[0].size == pools[1].size
    assert largest_angle(pools[0].basis, pools[1].basis) < 1e-6


@pytest.mark.parametrize("count", [1, 3, 4, 5, 12], ids=lambda m: f"{m} vectors in 4 dimensions")
def test_energies_are_the_same_before_and_after_the_sum_replaces_the_vectors(count: int) -> None:
    vectors = torch.randn(count, 4, dtype=torch.float64)
    gram, basis = gram_of(vectors, pieces=3), torch.linalg.qr(torch.randn(4, 2, dtype=torch.float64)).Q
    matrix = vectors.T @ vectors
    assert gram.energy == pytest.approx(float(matrix.trace()))
    assert torch.allclose(gram.along(basis), torch.diagonal(basis.T @ matrix @ basis))
    rest = torch.eye(4) - basis @ basis.T
    values = torch.linalg.eigvalsh(rest @ matrix @ rest).flip(0)
    energies = gram.residual(basis).energies
    assert len(energies) <= 2
    assert torch.allclose(energies, values[: len(energies)])


def test_it_sums_in_double_precision_whatever_the_network_computes_in() -> None:
    large, small = torch.full((1, 3), 1e4), torch.full((1000, 3), 1e-1)
    gram = Gram(3)
    for vectors in (large, *small.split(1)):
        gram.add(vectors)
    expected = 3 * (1e8 + 1000 * float(torch.tensor(0.1)) ** 2)
    assert gram.energy == pytest.approx(expected, rel=1e-12)
    for dtype in (torch.float16, torch.bfloat16):
        gram = Gram(3)
        gram.add(torch.full((400, 3), 200.0, dtype=dtype))  # the sum is beyond what half precision can hold
        assert gram.energy == 3 * 400 * 200.0**2


def test_what_is_added_later_changes_nothing_that_was_added_before() -> None:
    vectors = torch.ones(1, 3, dtype=torch.float64)
    gram = Gram(3)
    gram.add(vectors)
    vectors.zero_()
    assert gram.energy == 3


@given(shapes)
def test_many_vectors_are_taken_in_piece_by_piece(shape: tuple[int, ...]) -> None:
    vectors = low_rank(*shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cuber.subspace.gram.NUMBERS_AT_ONCE", 1)
        pieces = gram_of(vectors)
    assert pieces.count == len(vectors)
    assert torch.allclose(pieces.matrix, vectors.T @ vectors)


def test_weak_directions_of_few_vectors_are_orthonormal_too() -> None:
    """By the combinations alone, those that the pool explains nearly all of would be anything but."""
    generator = torch.Generator().manual_seed(0)
    pool = torch.linalg.qr(torch.randn(40, 5, dtype=torch.float64, generator=generator)).Q
    vectors = torch.randn(12, 40, dtype=torch.float64, generator=generator) * 1e-6 ** torch.linspace(
        0, 1, 12
    ).unsqueeze(1)
    vectors = 1e3 * torch.randn(12, 5, dtype=torch.float64, generator=generator) @ pool.T + vectors
    residual = gram_of(vectors).residual(pool)
    energies, directions = residual.energies, residual.directions(len(residual.energies))
    assert len(energies) == 8
    assert torch.allclose(directions.T @ directions, torch.eye(len(energies)).double(), atol=1e-13)
    assert torch.allclose(pool.T @ directions, torch.zeros(5, len(energies)).double(), atol=1e-13)


@given(shapes, st.integers(0, 4), st.integers(1, 5))
def test_fewer_directions_are_the_first_of_all(shape: tuple[int, ...], known: int, fewer: int) -> None:
    vectors = low_rank(*shape)
    pool = torch.linalg.qr(torch.randn(shape[0], min(known, shape[0] - 1), dtype=torch.float64)).Q
    residual = gram_of(vectors).residual(pool)
    count = min(fewer, len(residual.energies))
    all_of_them = residual.directions(len(residual.energies))
    assert torch.allclose(residual.directions(count), all_of_them[:, :count], atol=1e-9)
