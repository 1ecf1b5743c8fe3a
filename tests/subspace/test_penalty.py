"""The pull of a penalty is autograd's gradient of it, and 0 where nothing has moved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cuber.subspace import Gram, NormRestraint, Restraint, SquaredRestraint, energy_weights

sizes = st.integers(1, 10)


def orthonormal(dimension: int, rank: int) -> Tensor:
    return torch.linalg.qr(torch.randn(dimension, min(rank, dimension), dtype=torch.float64)).Q


Pull = tuple[Tensor, Tensor]
"""The value, and the pull as a matrix."""


def restraint(basis: Tensor, drift: Tensor, weights: Tensor | None = None, *, norm: bool = False) -> Pull:
    """Of one task that owns all columns, all of them movable."""
    every = torch.ones(1, basis.shape[1], dtype=torch.bool)
    if norm:
        return pulled(NormRestraint(every, every[0], drift), basis, drift)
    return pulled(SquaredRestraint(every, every[0], drift, None if weights is None else [weights]), basis, drift)


def pulled(restraint: Restraint, basis: Tensor, drift: Tensor) -> Pull:
    value, pull = restraint.value(drift @ basis), restraint.pull(drift @ basis)
    return value, pull @ basis.T


def gram_of(vectors: Tensor) -> Gram:
    gram = Gram(vectors.shape[1])
    gram.add(vectors)
    return gram


@given(sizes, sizes, sizes)
def test_the_norm_and_its_pull_are_those_of_autograd(d: int, rank: int, rows: int) -> None:
    basis, drift = orthonormal(d, rank), torch.randn(rows, d, dtype=torch.float64, requires_grad=True)
    expected = torch.linalg.matrix_norm(drift @ basis)
    expected.backward()
    value, pull = restraint(basis, drift.detach(), norm=True)
    assert float(value) == pytest.approx(float(expected.detach()))
    assert torch.allclose(pull, drift.grad, atol=1e-10)


@given(sizes, sizes, sizes, st.booleans())
def test_the_square_and_its_pull_are_those_of_autograd(d: int, rank: int, rows: int, weighted: bool) -> None:
    basis, drift = orthonormal(d, rank), torch.randn(rows, d, dtype=torch.float64, requires_grad=True)
    weights = energy_weights(gram_of(torch.randn(7, d)), basis) if weighted else None
    inside = drift @ basis
    expected = torch.trace(inside @ (torch.eye(basis.shape[1]).double() if weights is None else weights) @ inside.T)
    expected.backward()
    value, pull = restraint(basis, drift.detach(), weights)
    assert float(value) == pytest.approx(float(expected.detach()))
    assert torch.allclose(pull, drift.grad, atol=1e-10)


@given(sizes, sizes, st.integers(1, 20))
def test_energy_weights_measure_how_much_the_old_inputs_answers_change(d: int, rank: int, count: int) -> None:
    basis, inputs = orthonormal(d, rank), torch.randn(count, d, dtype=torch.float64)
    weights = energy_weights(gram_of(inputs), basis)
    assert torch.linalg.eigvalsh(weights)[-1] == pytest.approx(1.0)
    change = torch.randn(3, basis.shape[1], dtype=torch.float64) @ basis.T
    answers_change = float((inputs @ change.T).square().sum())
    largest = float(torch.linalg.eigvalsh(basis.T @ inputs.T @ inputs @ basis)[-1])
    assert float(restraint(basis, change, weights)[0]) * largest == pytest.approx(answers_change)


@pytest.mark.parametrize("rank", [0, 2])
def test_nothing_pulls_where_nothing_has_moved(rank: int) -> None:
    basis, still = torch.eye(5)[:, :rank], torch.zeros(3, 5)
    weights = energy_weights(gram_of(torch.randn(4, 5)), basis)
    for value, pull in (
        restraint(basis, still, norm=True),
        restraint(basis, still),
        restraint(basis, still, weights),
    ):
        assert float(value) == 0
        assert torch.equal(pull, still)


def test_nothing_pulls_on_what_moved_outside_the_basis() -> None:
    drift = torch.zeros(3, 4)
    drift[:, 2:] = torch.randn(3, 2)
    for value, pull in (
        restraint(torch.eye(4)[:, :2], drift, norm=True),
        restraint(torch.eye(4)[:, :2], drift),
    ):
        assert float(value) == 0
        assert not pull.any()


def test_unsquared_the_pull_has_the_same_size_however_little_has_moved() -> None:
    basis = orthonormal(6, 3)
    direction = torch.randn(2, 3, dtype=torch.float64) @ basis.T
    for size in (1e-6, 1.0, 1e6):
        assert float(restraint(basis, size * direction, norm=True)[1].norm()) == pytest.approx(1.0)


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 2**31), st.sampled_from(["norm", "squared", "energy"]))
def test_several_tasks_pull_together_as_they_would_one_by_one(d: int, rows: int, seed: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    basis = orthonormal(d, d - 1)
    drift = torch.randn(rows, d, dtype=torch.float64, generator=generator)
    owned = torch.rand(3, d - 1, generator=generator) < 0.6
    energies = [energy_weights(gram_of(torch.randn(7, d, generator=generator)), basis[:, own]) for own in owned]
    every = torch.ones(d - 1, dtype=torch.bool)
    together = {
        "norm": NormRestraint(owned, every, drift),
        "squared": SquaredRestraint(owned, every, drift),
        "energy": SquaredRestraint(owned, every, drift, energies),
    }[kind]
    value, pull = pulled(together, basis, drift)
    alone = [
        restraint(basis[:, own], drift, weights if kind == "energy" else None, norm=kind == "norm")
        for own, weights in zip(owned, energies, strict=True)
    ]
    assert float(value) == pytest.approx(float(sum(one for one, _ in alone)))
    assert torch.allclose(pull, torch.stack([one for _, one in alone]).sum(0), atol=1e-10)


def test_columns_that_may_not_move_count_but_do_not_pull() -> None:
    drift, every, movable = torch.tensor([[3.0, 4.0, 9.0]]), torch.ones(1, 2, dtype=torch.bool), torch.arange(2) < 1
    for restraint, value, along in (
        (NormRestraint(every, movable, drift), 5.0, 0.6),
        (SquaredRestraint(every, movable, drift), 25.0, 6.0),
    ):
        found, pull = pulled(restraint, torch.eye(3)[:, :2], drift)
        assert float(found) == value
        assert torch.allclose(pull, torch.tensor([[along, 0.0, 0.0]]))
