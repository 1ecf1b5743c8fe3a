"""The gradient of a penalty is autograd's, and 0 where nothing has moved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cuber.subspace import Gram, NormPenalty, Penalty, SquaredPenalty, energy_weights

sizes = st.integers(1, 10)


def orthonormal(dimension: int, rank: int) -> Tensor:
    return torch.linalg.qr(torch.randn(dimension, min(rank, dimension), dtype=torch.float64)).Q


def penalty_of_one(
    basis: Tensor, drift: Tensor, weights: Tensor | None = None, *, norm: bool = False
) -> tuple[Tensor, Tensor]:
    """Value and gradient for one task that owns all columns, all of them movable."""
    every = torch.ones(1, basis.shape[1], dtype=torch.bool)
    if norm:
        return evaluated(NormPenalty(every, every[0], drift @ basis), basis, drift)
    return evaluated(
        SquaredPenalty(every, every[0], drift @ basis, None if weights is None else [weights]), basis, drift
    )


def evaluated(penalty: Penalty, basis: Tensor, drift: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient for a change of the whole weight."""
    return penalty.value(drift @ basis), penalty.gradient(drift @ basis) @ basis.T


def gram_of(vectors: Tensor) -> Gram:
    gram = Gram(vectors.shape[1])
    gram.add(vectors)
    return gram


@given(sizes, sizes, sizes)
def test_the_norm_and_its_gradient_are_those_of_autograd(d: int, rank: int, rows: int) -> None:
    basis, drift = orthonormal(d, rank), torch.randn(rows, d, dtype=torch.float64, requires_grad=True)
    expected = torch.linalg.matrix_norm(drift @ basis)
    expected.backward()
    value, gradient = penalty_of_one(basis, drift.detach(), norm=True)
    assert float(value) == pytest.approx(float(expected.detach()))
    assert torch.allclose(gradient, drift.grad, atol=1e-10)


@given(sizes, sizes, sizes, st.booleans())
def test_the_square_and_its_gradient_are_those_of_autograd(d: int, rank: int, rows: int, weighted: bool) -> None:
    basis, drift = orthonormal(d, rank), torch.randn(rows, d, dtype=torch.float64, requires_grad=True)
    weights = energy_weights(gram_of(torch.randn(7, d)), basis) if weighted else None
    inside = drift @ basis
    expected = torch.trace(inside @ (torch.eye(basis.shape[1]).double() if weights is None else weights) @ inside.T)
    expected.backward()
    value, gradient = penalty_of_one(basis, drift.detach(), weights)
    assert float(value) == pytest.approx(float(expected.detach()))
    assert torch.allclose(gradient, drift.grad, atol=1e-10)


@given(sizes, sizes, st.integers(1, 20))
def test_energy_weights_measure_how_much_outputs_for_old_inputs_change(d: int, rank: int, count: int) -> None:
    basis, inputs = orthonormal(d, rank), torch.randn(count, d, dtype=torch.float64)
    weights = energy_weights(gram_of(inputs), basis)
    assert torch.linalg.eigvalsh(weights)[-1] == pytest.approx(1.0)
    change = torch.randn(3, basis.shape[1], dtype=torch.float64) @ basis.T
    outputs_change = float((inputs @ change.T).square().sum())
    largest = float(torch.linalg.eigvalsh(basis.T @ inputs.T @ inputs @ basis)[-1])
    assert float(penalty_of_one(basis, change, weights)[0]) * largest == pytest.approx(outputs_change)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_gradient_is_0_where_nothing_has_moved(rank: int) -> None:
    basis, still = torch.eye(5)[:, :rank], torch.zeros(3, 5)
    weights = energy_weights(gram_of(torch.randn(4, 5)), basis)
    for value, gradient in (
        penalty_of_one(basis, still, norm=True),
        penalty_of_one(basis, still),
        penalty_of_one(basis, still, weights),
    ):
        assert float(value) == 0
        assert torch.equal(gradient, still)


def test_movement_outside_the_basis_is_not_penalized() -> None:
    drift = torch.zeros(3, 4)
    drift[:, 2:] = torch.randn(3, 2)
    for value, gradient in (
        penalty_of_one(torch.eye(4)[:, :2], drift, norm=True),
        penalty_of_one(torch.eye(4)[:, :2], drift),
    ):
        assert float(value) == 0
        assert not gradient.any()


def test_the_gradient_of_the_norm_has_the_same_size_for_any_displacement() -> None:
    basis = orthonormal(6, 3)
    direction = torch.randn(2, 3, dtype=torch.float64) @ basis.T
    for size in (1e-6, 1.0, 1e6):
        assert float(penalty_of_one(basis, size * direction, norm=True)[1].norm()) == pytest.approx(1.0)


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 2**31), st.sampled_from(["norm", "squared", "energy"]))
def test_the_penalty_of_several_tasks_is_the_sum_of_their_penalties(d: int, rows: int, seed: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    basis = orthonormal(d, d - 1)
    drift = torch.randn(rows, d, dtype=torch.float64, generator=generator)
    owned = torch.rand(3, d - 1, generator=generator) < 0.6
    energies = [energy_weights(gram_of(torch.randn(7, d, generator=generator)), basis[:, own]) for own in owned]
    every = torch.ones(d - 1, dtype=torch.bool)
    together = {
        "norm": NormPenalty(owned, every, drift @ basis),
        "squared": SquaredPenalty(owned, every, drift @ basis),
        "energy": SquaredPenalty(owned, every, drift @ basis, energies),
    }[kind]
    value, gradient = evaluated(together, basis, drift)
    alone = [
        penalty_of_one(basis[:, own], drift, weights if kind == "energy" else None, norm=kind == "norm")
        for own, weights in zip(owned, energies, strict=True)
    ]
    assert float(value) == pytest.approx(float(sum(one for one, _ in alone)))
    assert torch.allclose(gradient, torch.stack([one for _, one in alone]).sum(0), atol=1e-10)


def test_columns_that_may_not_move_count_but_have_no_gradient() -> None:
    drift, every, movable = torch.tensor([[3.0, 4.0, 9.0]]), torch.ones(1, 2, dtype=torch.bool), torch.arange(2) < 1
    for penalty, value, along in (
        (NormPenalty(every, movable, drift[:, :2]), 5.0, 0.6),
        (SquaredPenalty(every, movable, drift[:, :2]), 25.0, 6.0),
    ):
        found, gradient = evaluated(penalty, torch.eye(3)[:, :2], drift)
        assert float(found) == value
        assert torch.allclose(gradient, torch.tensor([[along, 0.0, 0.0]]))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("lam", [0.1, 1e6])
def test_no_step_of_the_squared_penalty_goes_past_its_minimum(count: int, lam: float) -> None:
    """However large ``lam`` and the number of tasks that share a column are."""
    lr, displacement = 0.3, torch.randn(4, 5)
    owned = torch.ones(count, 5, dtype=torch.bool)
    penalty = SquaredPenalty(owned, owned[0], displacement)
    after = displacement - lr * penalty.strength(lam, lr) * penalty.gradient(displacement)
    assert bool((after * displacement >= -1e-6).all())
    assert NormPenalty(owned, owned[0], displacement).strength(lam, lr) == lam


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_displacements_below_the_rounding_of_the_weight_are_not_penalized(dtype: torch.dtype) -> None:
    start, every = torch.randn(4, 5, dtype=dtype), torch.ones(1, 5, dtype=torch.bool)
    penalty, eps = NormPenalty(every, every[0], start), torch.finfo(dtype).eps
    assert not penalty.gradient(0.1 * eps * start).any()
    assert float(penalty.gradient(100 * eps * start).norm()) == pytest.approx(1, rel=1e-3)
