"""Where a weight is anchored, how far it has moved, and how it is restored."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cuber.subspace import Anchor, Constraint

OUTPUTS, DIMENSION, COLUMNS = 5, 12, 6


def drawn(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """A weight before and after training, and a pool."""
    generator = torch.Generator().manual_seed(seed)
    pool = torch.linalg.qr(torch.randn(DIMENSION, COLUMNS, dtype=torch.float64, generator=generator)).Q
    start, weight = torch.randn(2, OUTPUTS, DIMENSION, dtype=torch.float64, generator=generator)
    return start.to(dtype), weight.to(dtype), pool.to(dtype)


def first(count: int) -> Tensor:
    return torch.arange(COLUMNS) < count


@pytest.mark.parametrize("free", [0, 2, COLUMNS])
def test_a_weight_is_restored_along_protected_columns_and_nowhere_else(free: int) -> None:
    start, weight, pool = drawn(free)
    constraint = Constraint(pool, ~first(free), first(free), Anchor.of(start, pool))
    protected = pool[:, free:]
    restored = constraint.restored(weight)
    assert torch.allclose(restored, weight - (weight - start) @ protected @ protected.T, atol=1e-12)
    assert torch.allclose(constraint.restored(restored), restored, atol=1e-12)


@pytest.mark.parametrize("free", [0, 2, COLUMNS])
def test_the_weight_along_the_pool_is_as_anchored_but_for_free_columns(free: int) -> None:
    start, weight, pool = drawn(free)
    constraint = Constraint(pool, ~first(free), first(free), Anchor.of(start, pool))
    along, displacement = constraint.along(weight), constraint.displacement(weight)
    assert torch.allclose(along[:, :free], weight @ pool[:, :free])
    assert torch.allclose(along[:, free:], start @ pool[:, free:])
    assert torch.allclose(displacement, (weight - start) @ pool[:, :free])


def test_a_demoted_column_is_held_where_it_was_when_it_was_demoted() -> None:
    start, weight, pool = drawn(0)
    anchor = Anchor.of(start, pool)
    anchor.hold(weight, torch.arange(2), pool)
    constraint = Constraint(pool, torch.ones(COLUMNS, dtype=torch.bool), first(2), anchor)
    restored = constraint.restored(start)
    assert torch.allclose(restored @ pool[:, :2], weight @ pool[:, :2])
    assert torch.allclose(restored @ pool[:, 2:], start @ pool[:, 2:])
    assert torch.allclose(constraint.displacement(weight), (weight - start) @ pool[:, :2])
    assert not constraint.movable.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_weight_of_less_precision_is_anchored_in_the_precision_of_the_pool(dtype: torch.dtype) -> None:
    start, weight, pool = drawn(0)
    start, weight = start.to(dtype), weight.to(dtype)
    constraint = Constraint(pool, ~first(2), first(2), Anchor.of(start, pool))
    assert constraint.anchor.start.dtype == constraint.displacement(weight).dtype == pool.dtype
    assert constraint.restored(weight).dtype == dtype
    drift = (constraint.restored(weight).double() - start.double()) @ pool[:, 2:]
    assert drift.norm() < 10 * torch.finfo(dtype).eps * start.double().norm()
