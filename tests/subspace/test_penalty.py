"""The pull of a penalty is autograd's gradient of it, and 0 where nothing has moved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cuber.subspace import Gram, energy_weights, norm_penalty, squared_penalty

sizes = st.integers(1, 10)


def orthonormal(dimension: int, rank: int) -> Tensor:
    return torch.linalg.qr(torch.randn(dimension, min(rank, dimension), dtype=torch.float64)).Q


def gram_of(vectors: Tensor) -> Gram:
    gram = Gram(vectors.shape[1])
    gram.add(vectors)
    return gram


@given(sizes, sizes, sizes)
def test_the_norm_and_its_pull_are_those_of_autograd(d: int, rank: int, rows: int) -> None:
    basis, drift = orthonormal(d, rank), torch.randn(rows, d, dtype=torch.float64, requires_grad=True)
    expected = torch.linalg.matrix_norm(drift @ basis)
    expected.backward()
    value, pull = norm_penalty(drift.detach(), basis)
    assert float(value) == pytest.approx(float(expected.detach()))
    assert torch.allclose(pull, drift.grad, atol=1e-10)


@given(sizes, sizes, sizes, st.booleans())
def test_the_square_and_its_pull_are_those_of_autograd(d: int, rank: int, rows: int, weighted: bool) -> None:
    basis, drift = orthonormal(d, rank), torch.randn(rows, d, dtype=torch.float64, requires_grad=True)
    weights = energy_weights(gram_of(torch.randn(7, d)), basis) if weighted else None
    inside = drift @ basis
    expected = torch.trace(inside @ (torch.eye(basis.shape[1]).double() if weights is None else weights) @ inside.T)
    expected.backward()
    value, pull = squared_penalty(drift.detach(), basis, weights)
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
    assert float(squared_penalty(change, basis, weights)[0]) * largest == pytest.approx(answers_change)


@pytest.mark.parametrize("rank", [0, 2])
def test_nothing_pulls_where_nothing_has_moved(rank: int) -> None:
    basis, still = torch.eye(5)[:, :rank], torch.zeros(3, 5)
    weights = energy_weights(gram_of(torch.randn(4, 5)), basis)
    for value, pull in (
        norm_penalty(still, basis),
        squared_penalty(still, basis),
        squared_penalty(still, basis, weights),
    ):
        assert float(value) == 0
        assert torch.equal(pull, still)


def test_nothing_pulls_on_what_moved_outside_the_basis() -> None:
    drift = torch.zeros(3, 4)
    drift[:, 2:] = torch.randn(3, 2)
    for value, pull in (norm_penalty(drift, torch.eye(4)[:, :2]), squared_penalty(drift, torch.eye(4)[:, :2])):
        assert float(value) == 0
        assert not pull.any()


def test_unsquared_the_pull_has_the_same_size_however_little_has_moved() -> None:
    basis = orthonormal(6, 3)
    direction = torch.randn(2, 3, dtype=torch.float64) @ basis.T
    for size in (1e-6, 1.0, 1e6):
        assert float(norm_penalty(size * direction, basis)[1].norm()) == pytest.approx(1.0)
