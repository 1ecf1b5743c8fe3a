"""Directions of low-rank updates, and the budget for changes of old outputs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cuber.subspace import Gram
from cuber.subspace.free import ChangeBudget, directions_within, energy_outside, free_directions, output_energy


def gram_of(vectors: Tensor) -> Gram:
    gram = Gram(vectors.shape[1])
    gram.add(vectors)
    return gram


def basis(dimension: int, size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dimension, size, dtype=torch.float64, generator=generator)).Q


@given(st.integers(0, 9), st.integers(1, 12), st.integers(1, 30), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_free_directions_are_orthonormal_and_outside(taken: int, count: int, vectors: int, seed: int) -> None:
    torch.manual_seed(seed)
    known = basis(10, taken, seed)
    found = free_directions(gram_of(torch.randn(vectors, 10)), known, count)
    assert found.shape == (10, min(count, 10 - taken))
    assert torch.allclose(found.mT @ found, torch.eye(found.shape[1]).double(), atol=1e-10)
    assert torch.allclose(known.mT @ found, torch.zeros(taken, found.shape[1]).double(), atol=1e-10)


def test_free_directions_hold_the_most_energy_that_any_could() -> None:
    torch.manual_seed(1)
    vectors = torch.randn(50, 8).double() * torch.tensor([9.0, 8, 7, 1, 1, 5, 1, 1])
    taken = torch.eye(8).double()[:, :1]
    found = free_directions(gram_of(vectors), taken, 3)
    outside = vectors[:, 1:]
    best = torch.linalg.eigvalsh(outside.mT @ outside)[-3:].sum()
    assert float((vectors @ found).square().sum()) == pytest.approx(float(best), rel=1e-9)


def test_directions_that_the_inputs_do_not_determine_are_the_same_every_time() -> None:
    vectors = torch.eye(12)[:2]
    first, second = (free_directions(gram_of(vectors), torch.zeros(12, 0), 5) for _ in range(2))
    assert torch.equal(first, second)
    assert float(first[:2, 2:].abs().max()) < 1e-12


def test_directions_within_a_basis_stay_there_and_lead() -> None:
    torch.manual_seed(2)
    vectors, inside = torch.randn(40, 9).double(), basis(9, 4)
    found = directions_within(gram_of(vectors), inside, 2)
    assert torch.allclose(inside @ (inside.mT @ found), found, atol=1e-10)
    along = vectors @ inside
    best = torch.linalg.eigvalsh(along.mT @ along)[-2:].sum()
    assert float((vectors @ found).square().sum()) == pytest.approx(float(best), rel=1e-9)


def test_the_energy_outside_is_exact_though_the_basis_is_rounded() -> None:
    torch.manual_seed(3)
    known = basis(20, 6)
    vectors = torch.randn(100, 6).double() @ known.mT + 1e-5 * torch.randn(100, 20).double()
    expected = (vectors - vectors @ known @ known.mT).square().sum()
    assert energy_outside(gram_of(vectors), known.float()) == pytest.approx(float(expected), rel=0.01)


@given(st.integers(0, 1000), st.sets(st.integers(0, 3)))
@settings(max_examples=60, deadline=None)
def test_no_updates_within_the_budget_change_outputs_by_more_than_the_tolerance_but_of_improving_tasks(
    seed: int, improving: set[int]
) -> None:
    torch.manual_seed(seed)
    tolerance, budget, known = 1e-2, ChangeBudget(), torch.zeros(10, 0).double()
    weight, old = torch.randn(4, 10).double(), []
    for _ in range(4):
        present = improving & set(range(len(old)))
        if len(old):
            outside = free_directions(gram_of(torch.randn(30, 10)), known, 2).mT
            along = torch.cat([known[:, :0], *(own for task, (_, own, _) in enumerate(old) if task in present)], dim=1)
            norms = [min(100.0, norm) for norm in budget.largest_norms(tolerance, present)]
            for rows, norm in zip((outside, along.mT), norms, strict=True):
                up = torch.randn(4, len(rows)).double()
                if len(rows):
                    weight = weight + norm / torch.linalg.matrix_norm(up, 2) * up @ rows
            budget.spend(norms[0], norms[1] if present else 0.0, present)
        inputs = torch.randn(30, 10).double() * torch.logspace(0, -3, 10).double()
        gram = gram_of(inputs)
        own = free_directions(gram, known, 2)
        known = torch.cat([known, own], dim=1)
        budget.add_task(energy_outside(gram, known), energy_outside(gram, own), output_energy(gram, known, weight))
        old.append((inputs, own, weight))
    for task, (inputs, _, before) in enumerate(old):
        inside = inputs @ known @ known.mT
        change = (inputs @ (weight - before).mT).norm() / (inside @ before.mT).norm()
        assert task in improving or change <= 1.001 * tolerance


def test_without_energy_outside_an_update_may_be_of_any_size() -> None:
    budget = ChangeBudget()
    budget.add_task(0.0, 0.0, 1.0)
    budget.spend(1e9)
    assert budget.largest_norms(1e-3) == (math.inf, math.inf)
    budget.add_task(1.0, 1.0, 4.0)
    assert budget.largest_norms(1e-3) == (pytest.approx(1e-3), math.inf)
    assert budget.largest_norms(1e-3, improving=[0]) == (pytest.approx(5e-4), pytest.approx(5e-4))
    assert budget.largest_norms(1e-3, improving=[1]) == (pytest.approx(1e-3), math.inf)
