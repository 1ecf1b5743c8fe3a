"""A sketch never gives a direction more energy than it has, loses little, and finds the subspaces of the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cuber.subspace import Gram, Pool, Sketch, energy_weights
from cuber.subspace.sketch import SHRUNK
from tests.oracles.dense import largest_angle

shapes = st.tuples(st.integers(2, 16), st.integers(1, 80), st.integers(1, 16), st.integers(0, 10**6))


def falling(
    dimension: int, count: int, seed: int = 0, power: float = 1.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """count x dimension with energies that fall as a power, in random directions, around a mean."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.arange(1, dimension + 1).double() ** -power
    turned = torch.linalg.qr(torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)).Q
    return (torch.randn(count, dimension, generator=generator, dtype=torch.float64) * scales @ turned).to(dtype)


def low_rank(dimension: int, count: int, rank: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(count, rank, generator=generator, dtype=torch.float64)
    return left @ torch.randn(rank, dimension, generator=generator, dtype=torch.float64)


def random_basis(dimension: int, columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dimension, columns, generator=generator, dtype=torch.float64)).Q


def sketch_of(vectors: Tensor, rank: int, basis: Tensor | None = None, pieces: int = 3) -> Sketch:
    sketch = Sketch(vectors.new_zeros(vectors.shape[1], 0) if basis is None else basis, rank)
    for piece in vectors.chunk(pieces):
        sketch.add(piece)
    return sketch


@given(shapes, st.integers(0, 3), st.integers(1, 4), st.integers(0, 80))
def test_no_direction_gains_energy_and_none_loses_more_than_the_bound(
    shape: tuple[int, ...], known: int, rank: int, cut: int
) -> None:
    """For one sketch, and for two that are merged."""
    vectors = low_rank(*shape)
    basis = random_basis(shape[0], min(known, shape[0] - 1))
    outside = vectors - vectors @ basis @ basis.T
    merged = sketch_of(vectors[:cut], rank, basis)
    merged.merge(sketch_of(vectors[cut:], rank, basis))
    total = float(outside.square().sum())
    for sketch in (sketch_of(vectors, rank, basis), merged):
        assert sketch.count == len(vectors)
        assert sketch.energy == pytest.approx(float(vectors.square().sum()))
        assert sketch.rows is not None
        assert len(sketch.rows) <= 4 * rank
        left = torch.eye(shape[0]).double() - basis @ basis.T
        lost = torch.linalg.eigvalsh(outside.T @ outside - left @ sketch.matrix @ left)
        assert float(lost[0]) >= -1e-9 * total
        assert float(lost[-1]) <= total / max(1, int(SHRUNK * 2 * rank)) + 1e-9 * total
        assert torch.allclose(sketch.along(basis), (vectors @ basis).square().sum(0))
        assert torch.allclose(sketch.along(basis), sketch.within(basis).diagonal())


@given(st.integers(2, 16), st.integers(1, 12), st.integers(0, 10**6), st.sampled_from([0.5, 0.9, 0.97]))
def test_of_few_vectors_it_is_the_gram_matrix(dimension: int, count: int, seed: int, threshold: float) -> None:
    vectors = low_rank(dimension, count, 12, seed)
    pools = []
    for first in (Gram(dimension), Sketch(vectors.new_zeros(dimension, 0), rank=3)):
        pool = Pool.empty(dimension, like=vectors)
        first.add(vectors)
        pool.add_task(first, threshold)
        second = Gram(dimension) if type(first) is Gram else Sketch(pool.basis, rank=3)
        second.add(vectors.flip(1))
        pool.add_task(second, threshold)
        weights = energy_weights(second, pool.basis_of(1))
        pools.append((pool, pool.basis_of(1) @ weights @ pool.basis_of(1).T))
    (exact, one), (sketched, other) = pools
    assert torch.equal(exact.owners, sketched.owners)
    assert largest_angle(exact.basis, sketched.basis) < 1e-5
    assert torch.allclose(exact.importance, sketched.importance)
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("mean", [0.0, 100.0], ids=["no mean", "large mean"])
@pytest.mark.parametrize("power", [0.75, 1.0, 1.5])
def test_it_captures_the_energy_that_the_eigenvectors_capture(power: float, mean: float) -> None:
    """Within 0.1 %, from float32, in one pass or merged from two halves, and orthonormal."""
    rank, vectors = 32, falling(256, 3000, power=power) + mean
    exact = torch.linalg.eigvalsh(vectors.double().T @ vectors.double()).flip(0)[:rank].sum()
    merged = sketch_of(vectors[:1500], rank)
    merged.merge(sketch_of(vectors[1500:], rank))
    for sketch in (sketch_of(vectors, rank, pieces=7), merged):
        found = sketch.residual(vectors.new_zeros(256, 0)).directions(rank)
        assert float((vectors.double() @ found).square().sum() / exact) > 0.999
        assert float((found.T @ found - torch.eye(rank)).abs().max()) < 1e-5
        assert sketch.along(found).sum() == pytest.approx(float(exact), rel=0.02)


def test_what_old_columns_hold_leaves_the_rank_to_new_directions() -> None:
    """A task that needs 40 directions, 30 of them in the pool: a sketch of rank 10 is enough."""
    old, new = low_rank(120, 400, 30, seed=1), low_rank(120, 400, 10, seed=2)
    pool = Pool.empty(120, like=old)
    pool.add_task(sketch_of(old, rank=30), 0.999)
    vectors = torch.cat([old, new])
    assert pool.add_task(sketch_of(vectors, rank=10, basis=pool.basis), 0.999) >= 0.999
    assert pool.size <= 40
    held = (vectors @ pool.basis_of(1)).square().sum() / vectors.square().sum()
    assert float(held) >= 0.999


def test_a_direction_that_comes_late_and_thinly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no row was shrunk, it would be dropped each time, although it has more energy than any other."""
    vectors = torch.zeros(2160, 64)
    vectors[:160] = torch.eye(64)[:16].repeat(10, 1)
    vectors[160:, 40] = 0.3  # an energy of 180; the others have 10
    for share, length in ((SHRUNK, 1.0), (0.0, 0.0)):
        monkeypatch.setattr("cuber.subspace.sketch.SHRUNK", share)
        found = sketch_of(vectors, rank=8, pieces=100).residual(vectors.new_zeros(64, 0)).directions(1)
        assert float(found[40].norm()) == pytest.approx(length, abs=1e-3)


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e18])
def test_rank_is_not_invented_by_rounding(scale: float) -> None:
    vectors = scale * low_rank(64, 500, 5, seed=0).float()
    assert len(sketch_of(vectors, rank=16).residual(torch.zeros(64, 0)).energies) == 5


def test_zeros_own_nothing_and_inputs_that_are_not_finite_show_in_the_energy() -> None:
    pool = Pool.empty(8, like=torch.zeros(1))
    pool.add_task(sketch_of(torch.zeros(40, 8), rank=1), 0.97)
    assert pool.size == 0
    vectors = torch.randn(40, 8)
    vectors[5, 3] = float("nan")
    assert not sketch_of(vectors, rank=1).energy < float("inf")


def test_inside_an_autocast_it_computes_in_full_precision() -> None:
    vectors, basis = falling(64, 300), random_basis(64, 5).float()
    outside = sketch_of(vectors, 16, basis)
    with torch.autocast("cpu", torch.bfloat16):
        inside = sketch_of(vectors, 16, basis)
    assert torch.equal(inside.matrix, outside.matrix)
