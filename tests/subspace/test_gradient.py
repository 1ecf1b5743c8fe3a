"""A pruned gradient keeps its largest entries and the norm of the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuber.subspace import PrunedGradient


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one * other).sum() / (one.norm() * other.norm()))


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0, 1))
def test_it_keeps_the_largest_entries_and_at_least_one(rows: int, columns: int, keep: float) -> None:
    gradient = torch.randn(rows, columns, dtype=torch.float64)
    pruned = PrunedGradient.of(gradient, keep)
    count = max(1, round(keep * gradient.numel()))
    by_size = gradient.flatten().abs().sort(descending=True).values
    assert sorted(pruned.values.abs().tolist(), reverse=True) == by_size[:count].tolist()
    assert torch.equal(pruned.entries(gradient), pruned.values)
    assert pruned.norm == pytest.approx(float(gradient.norm()))


def test_with_every_entry_kept_the_cosine_is_the_cosine() -> None:
    old, new = torch.randn(4, 5), torch.randn(4, 5)
    assert PrunedGradient.of(old, 1.0).cosine(new) == pytest.approx(cosine(old, new), abs=1e-6)
    assert PrunedGradient.of(old, 1.0).cosine(old) == pytest.approx(1.0, abs=1e-6)
    assert PrunedGradient.of(old, 1.0).cosine(-old) == pytest.approx(-1.0, abs=1e-6)


def test_the_norm_in_the_cosine_is_that_of_the_whole_gradient() -> None:
    old, new = torch.tensor([[3.0, 4.0, 0.1]]), torch.tensor([[1.0, 2.0, 5.0]])
    expected = 4.0 * 2.0 / (float(old.norm()) * float(new.norm()))
    assert PrunedGradient.of(old, 0.34).cosine(new) == pytest.approx(expected)


def test_the_cosine_with_a_gradient_of_0_is_0() -> None:
    something, nothing = torch.ones(2, 2), torch.zeros(2, 2)
    assert PrunedGradient.of(nothing, 0.5).cosine(something) == 0.0
    assert PrunedGradient.of(something, 0.5).cosine(nothing) == 0.0


def test_it_does_not_change_with_the_tensor_it_was_made_of() -> None:
    gradient = torch.ones(2, 2)
    pruned = PrunedGradient.of(gradient, 1.0)
    gradient.zero_()
    assert pruned.values.tolist() == [1.0] * 4
