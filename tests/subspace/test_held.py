"""One look along a free direction tells whether a weight has moved as far as is said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cuber.subspace import Held, PartlyHeld, Projector


def moved_weight(dtype: torch.dtype, size: float) -> tuple[PartlyHeld, Tensor, Tensor]:
    """A weight that has moved along free columns, and outside of the pool; and how far."""
    generator = torch.Generator().manual_seed(1)
    pool = torch.linalg.qr(torch.randn(20, 9, dtype=torch.float64, generator=generator)).Q
    anchor = torch.randn(6, 20, generator=generator).to(dtype)
    held = PartlyHeld(pool.to(dtype), anchor, pool[:, 5:].to(dtype))
    moved = size * torch.randn(6, 4, generator=generator).to(dtype)
    outside = torch.randn(6, 20, dtype=torch.float64, generator=generator) @ (torch.eye(20).double() - pool @ pool.T)
    return held, held.anchor + moved @ held.free.T + outside.to(dtype), moved


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0])
def test_what_is_right_is_agreed_to(dtype: torch.dtype, size: float) -> None:
    held, weight, moved = moved_weight(dtype, size)
    assert held.agrees(weight @ held.direction, moved)
    assert torch.allclose(held.moved(weight), moved, atol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("times", [0.5, 0.999, 1.001, 1024.0, float("nan")])
def test_what_is_wrong_is_not(times: float) -> None:
    held, weight, moved = moved_weight(torch.float32, 1.0)
    assert not held.agrees(weight @ held.direction, times * moved)


def held_pool(rank: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where a weight was, where it has gone, and a pool."""
    generator = torch.Generator().manual_seed(seed)
    pool = torch.linalg.qr(torch.randn(12, rank, dtype=torch.float64, generator=generator)).Q
    anchor, weight = torch.randn(2, 5, 12, dtype=torch.float64, generator=generator)
    return anchor, weight, pool


@pytest.mark.parametrize("rank", [1, 6, 7, 11, 12])
@pytest.mark.parametrize("whole", [False, True])
def test_a_held_weight_is_put_back_along_the_pool_and_nowhere_else(rank: int, whole: bool) -> None:
    anchor, weight, pool = held_pool(rank, seed=rank)
    held, projector = Held.of(anchor, pool), Projector(pool)
    if whole:  # of any weight that has left the pool's directions, what is right is kept
        held.keep_whole(weight)
    back = held.put_back(weight, projector)
    assert torch.allclose(back, weight - (weight - anchor) @ pool @ pool.T, atol=1e-12)
    assert torch.allclose(held.put_back(back, projector), back, atol=1e-12)
    partly = PartlyHeld(pool, anchor, pool[:, :0])
    assert torch.allclose(back, partly.put_back(weight, projector), atol=1e-12)
    assert projector.by_complement == (rank >= 7)


def test_what_has_become_protected_is_put_back_to_where_it_was_then() -> None:
    anchor, weight, pool = held_pool(6, seed=0)
    held = PartlyHeld(pool, anchor, pool[:, :2], reference=weight)
    assert torch.allclose(held.put_back(anchor, Projector(pool)) @ pool, weight @ pool)
    assert torch.allclose(held.moved(weight), (weight - anchor) @ pool[:, :2])


def test_how_far_a_weight_has_come_along_the_pool() -> None:
    anchor, weight, pool = held_pool(4, seed=0)
    for held in (Held.of(anchor, pool), PartlyHeld(pool, anchor, pool[:, :2])):
        assert torch.allclose(held.change(weight), (weight - anchor) @ pool)


def test_along_the_whole_pool_nothing_is_kept_twice() -> None:
    anchor, _, pool = held_pool(4, seed=0)
    held = Held.of(anchor, pool)
    assert held.read(pool) is held.along
    assert torch.allclose(held.read(pool[:, 1:3]), anchor @ pool[:, 1:3])
    assert held.still.shape == (5, 0)


@pytest.mark.parametrize("rank", [1, 40, 100, 199, 200])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_has_not_moved_stays_as_it_is_to_the_bit(rank: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rank)
    exact = torch.promote_types(dtype, torch.float32)
    pool = torch.linalg.qr(torch.randn(200, rank, dtype=torch.float64)).Q.to(exact)
    weight, projector = torch.randn(50, 200).to(dtype), Projector(pool)
    held = Held.of(weight, pool)
    assert torch.equal(held.put_back(weight, projector), weight)
    moved = weight.to(exact) + 1e-4 * pool[:, 0]
    assert not torch.equal(held.put_back(moved, projector), moved)


@pytest.mark.parametrize("rank", [40, 150])
def test_rows_of_small_size_are_put_back_as_all_are(rank: int) -> None:
    torch.manual_seed(rank)
    pool = torch.linalg.qr(torch.randn(200, rank)).Q
    weight = torch.randn(300, 200)
    weight[0] *= 1e-3
    moved = weight.clone()
    moved[0] += 1e-5 * pool[:, 0]
    back = Held.of(weight, pool).put_back(moved, Projector(pool))
    assert (back - weight)[0].norm() < 0.05 * (moved - weight)[0].norm()
    assert torch.equal(back[1:], weight[1:])


@pytest.mark.parametrize("rank", [40, 150])
def test_doubles_are_put_back_as_doubles_by_a_pool_of_floats(rank: int) -> None:
    torch.manual_seed(rank)
    pool = torch.linalg.qr(torch.randn(200, rank, dtype=torch.float64)).Q
    weight, outside = torch.randn(2, 30, 200, dtype=torch.float64)
    outside = outside - outside @ pool @ pool.T
    held = Held.of(weight, pool.float())
    back = held.put_back(weight + 1e-9 * outside, Projector(pool.float()))
    assert torch.allclose(back, weight + 1e-9 * outside, atol=1e-14)
