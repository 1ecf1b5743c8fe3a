"""One look along a free direction tells whether a weight has moved as far as is said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cuber.subspace import Held


def moved_weight(dtype: torch.dtype, size: float) -> tuple[Held, Tensor, Tensor]:
    """A weight that has moved along free columns, and outside of the pool; and how far."""
    generator = torch.Generator().manual_seed(1)
    pool = torch.linalg.qr(torch.randn(20, 9, dtype=torch.float64, generator=generator)).Q
    held = Held(torch.randn(6, 20, generator=generator).to(dtype), pool[:, 5:].to(dtype))
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


def test_where_nothing_is_free_nothing_moves() -> None:
    held = Held(torch.randn(3, 5), torch.zeros(5, 0))
    assert held.moved(torch.randn(3, 5)).shape == (3, 0)
    assert held.still is not None
