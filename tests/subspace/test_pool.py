"""The pool stays orthonormal, no larger than its space, and owned as section 3 says, whatever the data."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cuber.subspace import Gram, Pool
from tests.oracles.bases import explain
from tests.oracles.dense import largest_angle

KINDS = ["random", "low rank", "duplicates of the first", "zero", "one vector", "tiny", "huge", "in the pool"]


def task_vectors(kind: str, dimension: int, count: int, seed: int, pool: Pool, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(count, dimension, generator=generator, dtype=torch.float64)
    made = {
        "random": random,
        "low rank": random[:, :2] @ torch.randn(2, dimension, generator=generator, dtype=torch.float64)
        if dimension > 1
        else random,
        "duplicates of the first": random[:1].repeat(count, 1),
        "zero": torch.zeros(count, dimension),
        "one vector": random[:1],
        "tiny": random * 1e-15,
        "huge": random * 1e15,
        "in the pool": random @ (pool.basis @ pool.basis.T).double(),
    }
    return made[kind].to(dtype)


tasks = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 30), st.integers(0, 10**6)), min_size=1, max_size=6)


def departure(pool: Pool) -> float:
    """How far the columns are from orthonormal, ``||U'U - I||``."""
    basis = pool.basis.double()
    return float((basis.T @ basis - torch.eye(pool.size)).norm())


def gram_of(vectors: Tensor) -> Gram:
    gram = Gram(vectors.shape[1])
    for piece in vectors.chunk(3):
        gram.add(piece)
    return gram


@given(st.integers(1, 16), tasks, st.floats(0, 1), st.sampled_from([torch.float32, torch.float64]))
def test_a_pool_is_orthonormal_no_larger_than_its_space_and_its_owners_lie_inside(
    dimension: int, stream: list[tuple[str, int, int]], threshold: float, dtype: torch.dtype
) -> None:
    pool = Pool.empty(dimension, like=torch.zeros(1, dtype=dtype))
    for number, (kind, count, seed) in enumerate(stream, start=1):
        before, owned = pool.basis.clone(), pool.owners.clone()
        pool.add_task(gram_of(task_vectors(kind, dimension, count, seed, pool, dtype)), threshold)
        assert pool.size <= dimension
        assert pool.basis.dtype == dtype
        assert pool.owners.shape == (number, pool.size)
        assert departure(pool) < 1e-5
        assert torch.equal(pool.basis[:, : before.shape[1]], before), "an old column changed"
        assert torch.equal(pool.owners[:-1, : owned.shape[1]], owned), "an old task's columns changed"
        assert not pool.owners[:-1, owned.shape[1] :].any(), "an old task was given a new column"
        assert pool.owners[-1, owned.shape[1] :].all(), "a column that nobody owns"


@given(st.integers(2, 16), tasks, st.sampled_from([0.5, 0.9, 0.97, 0.9999]))
def test_a_task_owns_what_the_joint_sort_of_energies_takes(
    dimension: int, stream: list[tuple[str, int, int]], threshold: float
) -> None:
    pool = Pool.empty(dimension, like=torch.zeros(1, dtype=torch.float64))
    for kind, count, seed in stream:
        vectors = task_vectors(kind, dimension, count, seed, pool, torch.float64)
        old, new = explain(vectors.T, pool.basis, threshold)
        expected = torch.cat([pool.basis[:, old], new], dim=1)
        pool.add_task(gram_of(vectors), threshold)
        assert largest_angle(pool.basis_of(pool.tasks - 1), expected) < 1e-4


@given(st.integers(1, 16), st.integers(1, 30), st.integers(0, 10**6), st.floats(0, 1))
def test_the_energy_that_a_task_owns_reaches_the_threshold_and_one_column_fewer_does_not(
    dimension: int, count: int, seed: int, threshold: float
) -> None:
    pool = Pool.empty(dimension, like=torch.zeros(1, dtype=torch.float64))
    for number in range(2):
        vectors = task_vectors("random", dimension, count, seed + number, pool, torch.float64)
        gram = gram_of(vectors)
        pool.add_task(gram, threshold)
        owned = gram.along(pool.basis_of(number))
        goal = min(threshold, 1 - gram.rounding) * gram.energy
        assert float(owned.sum()) >= goal * (1 - 1e-9)
        assert float(owned.sum() - owned.min()) <= goal * (1 + 1e-9)


@given(st.integers(2, 16), st.integers(1, 30), st.integers(1, 4), st.integers(0, 10**6))
def test_all_of_the_energy_means_the_rank_of_the_vectors(dimension: int, count: int, rank: int, seed: int) -> None:
    rank = min(rank, count, dimension)
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(size, rank, generator=generator)).Q for size in (count, dimension))
    vectors = left @ right.T  # in float32: the other directions have nothing but rounding
    pool = Pool.empty(dimension, like=vectors)
    pool.add_task(gram_of(vectors), 1.0)
    assert pool.size == rank


def test_all_of_the_energy_takes_weak_directions_too_and_less_does_not() -> None:
    energies = torch.tensor([1000.0, 10.0, 1e-5], dtype=torch.float64)
    for threshold, size in ((0.999, 2), (1.0, 3)):
        pool = Pool.empty(3, like=energies)
        pool.add_task(gram_of(torch.diag(energies.sqrt())), threshold)
        assert pool.size == size


def test_rounding_of_half_precision_is_no_direction() -> None:
    exact = torch.outer(torch.linspace(1, 2, 50), torch.linspace(1, 2, 8))
    pool = Pool.empty(8, like=exact)
    pool.add_task(gram_of(exact.to(torch.bfloat16)), 1.0)
    assert pool.size == 1


@given(st.integers(2, 16), st.integers(2, 40), st.floats(0, 100), st.integers(0, 10**6), st.floats(0.5, 0.999))
def test_what_is_left_of_the_variance_is_no_more_than_asked_for_however_large_the_mean(
    dimension: int, count: int, mean: float, seed: int, variance: float
) -> None:
    vectors = task_vectors("random", dimension, count, seed, Pool.empty(dimension, like=torch.zeros(1)), torch.float64)
    vectors = vectors * torch.logspace(0, -2, dimension, dtype=torch.float64) + mean
    gram, pool = gram_of(vectors), Pool.empty(dimension, like=vectors)
    pool.add_task(gram, 0.5, variance)
    centered = vectors - vectors.mean(0)
    assert gram.variance == pytest.approx(float(centered.square().sum()), rel=1e-6, abs=1e-9 * gram.energy)
    outside = vectors - vectors @ pool.basis @ pool.basis.T
    assert float(outside.square().sum()) <= (1 - variance) * gram.variance + 1e-9 * gram.energy
    if mean == 0:
        plain = Pool.empty(dimension, like=vectors)
        plain.add_task(gram_of(vectors), 0.5)
        assert plain.size <= pool.size


def test_old_columns_are_stored_once_however_many_tasks_own_them() -> None:
    vectors = torch.randn(20, 6)
    pool = Pool.empty(6, like=vectors)
    for _ in range(4):
        pool.add_task(gram_of(vectors), 0.9)
    assert pool.owners.all()
    assert pool.size < 6


def test_a_task_that_never_reaches_a_layer_owns_nothing_there() -> None:
    pool = Pool.empty(4, tasks=2, like=torch.zeros(1))
    pool.add_task(None, 0.9)
    pool.add_task(gram_of(torch.randn(9, 4)), 0.9)
    assert pool.owners.shape == (4, pool.size)
    assert pool.owners.sum(1).tolist() == [0, 0, 0, pool.size]


def test_directions_far_weaker_than_the_old_ones_are_still_orthogonal_to_them() -> None:
    strong = torch.randn(1, 300, dtype=torch.float64)
    pool = Pool.empty(300, like=torch.zeros(1))
    pool.add_task(gram_of(strong), 0.9)
    weak = torch.randn(600, 300, dtype=torch.float64)
    weak *= 0.05 * strong.norm() / weak.norm()  # 0.25 % of the energy, over 300 directions
    pool.add_task(gram_of(torch.cat([strong, weak])), 0.999)
    assert pool.size > 50
    assert departure(pool) < 1e-5


def test_twenty_tasks_of_a_wide_layer_leave_the_pool_orthonormal() -> None:
    pool = Pool.empty(300, like=torch.zeros(1))
    for task in range(20):
        torch.manual_seed(task)
        pool.add_task(gram_of(torch.randn(200, 30) @ torch.randn(30, 300)), 0.97)
    assert pool.size == 300
    assert departure(pool) < 1e-5
