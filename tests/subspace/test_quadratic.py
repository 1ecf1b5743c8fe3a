"""The quadratic model of old losses against dense matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cuber.subspace import quadratic
from cuber.subspace.quadratic import DampedGradient, QuadraticModel, SoftProjector

OUT, D = 3, 6


def random_moments(generator: torch.Generator, rank: int) -> Tensor:
    vectors = torch.randn(rank, D, generator=generator, dtype=torch.float64)
    return vectors.T @ vectors


def draw(seed: int, tasks: int = 2, rank: int = 4, *, lam: float = 0.3, curvature: float = 5.0):
    """A model of some tasks, with the dense gradient and curvature that it stands for."""
    generator = torch.Generator().manual_seed(seed)
    model = QuadraticModel.empty(OUT, D, like=torch.zeros(1, dtype=torch.float64))
    g, H = torch.zeros(OUT, D, dtype=torch.float64), torch.zeros(D, D, dtype=torch.float64)
    for _ in range(tasks):
        gradient, weight = torch.randn(2, OUT, D, generator=generator, dtype=torch.float64)
        moments = random_moments(generator, rank)
        model.add(gradient, moments, weight, curvature, lam)
        g, H = g + gradient, H + curvature * moments / torch.trace(weight @ moments @ weight.T)
    return model, g, H, torch.randn(OUT, D, generator=generator, dtype=torch.float64)


@given(st.integers(0, 1000), st.integers(0, 3), st.integers(1, 8), st.sampled_from([1e-3, 0.3, 10.0]))
def test_it_is_the_sum_of_its_tasks(seed: int, tasks: int, rank: int, lam: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quadratic, "NEGLIGIBLE", 1e-12)
        model, g, H, moved = draw(seed, tasks, rank, lam=lam)
    eye = torch.eye(D, dtype=torch.float64)
    assert torch.allclose(model.gradient_at(moved), g + moved @ H)
    assert float(model.value(moved)) == pytest.approx(float((g * moved).sum() + torch.trace(moved @ H @ moved.T) / 2))
    assert torch.allclose(model.filter(lam).outside(moved), moved @ torch.linalg.inv(eye + H / lam), atol=1e-9)
    damped = g @ H @ torch.linalg.inv(H + lam * eye) + moved @ H
    assert torch.allclose(DampedGradient(model, lam, lam).at(moved), damped, atol=1e-7)
    at = moved.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model.value(at, lam), at)
    assert torch.allclose(slope, damped, atol=1e-7)  # what closures are told has the gradient that is added
    filtered = damped @ torch.linalg.inv(eye + H / lam)
    assert torch.allclose(DampedGradient(model, lam, lam).filtered_at(moved), filtered, atol=1e-7)


@given(st.integers(0, 1000), st.integers(1, 5))
def test_what_is_dropped_changes_updates_by_less_than_its_bound(seed: int, tasks: int) -> None:
    lam = 3.0
    model, _, H, moved = draw(seed, tasks, rank=D, lam=lam, curvature=1.0)
    exact = moved @ torch.linalg.inv(torch.eye(D, dtype=torch.float64) + H / lam)
    error = (model.filter(lam).outside(moved) - exact).norm() / moved.norm()
    assert error <= tasks * quadratic.NEGLIGIBLE


def test_moving_it_changes_neither_what_it_predicts_nor_its_curvature() -> None:
    model, _, _, moved = draw(0)
    whole = float(model.value(2 * moved))
    first = float(model.value(moved))
    model.move(moved)
    assert first + float(model.value(moved)) == pytest.approx(whole)


def test_without_curvature_the_gradient_is_not_followed() -> None:
    """A gradient along inputs that the task never had, as rounding leaves one: its minimum is infinitely far away."""
    model = QuadraticModel.empty(1, 2, like=torch.zeros(1))
    inputs = torch.diag(torch.tensor([1.0, 0.0]))
    model.add(torch.tensor([[1.0, 1.0]]), inputs, torch.ones(1, 2), curvature=2.0, lam=1.0)
    assert torch.allclose(model.damped_gradient(0.5), torch.tensor([[0.8, 0.0]]))


@pytest.mark.parametrize("weight", [torch.zeros(OUT, D), torch.full((OUT, D), 1e-9)], ids=["zero", "tiny"])
def test_a_layer_without_outputs_is_not_held_for_ever(weight: Tensor) -> None:
    model = QuadraticModel.empty(OUT, D, like=torch.zeros(1))
    model.add(torch.zeros(OUT, D), torch.eye(D), weight, curvature=1.0, lam=0.3)
    assert float(model.curvatures.max()) == pytest.approx(1 / (quadratic.SMALLEST_OUTPUT * OUT))


def test_a_task_without_inputs_adds_nothing() -> None:
    model = QuadraticModel.empty(OUT, D, like=torch.zeros(1))
    model.add(torch.zeros(OUT, D), torch.zeros(D, D), torch.ones(OUT, D), curvature=1.0, lam=0.3)
    assert len(model.curvatures) == 0
    assert torch.equal(model.filter(0.3).outside(torch.ones(OUT, D)), torch.ones(OUT, D))


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 5, 6])
def test_a_soft_projector_multiplies_with_few_columns_or_one_matrix(rank: int) -> None:
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64))[0][:, :rank]
    shares = torch.rand(rank, generator=generator, dtype=torch.float64)
    projector, x = SoftProjector(basis, shares), torch.randn(4, D, generator=generator, dtype=torch.float64)
    inside = x @ basis @ torch.diag(shares) @ basis.T
    assert torch.allclose(projector.inside(x), inside)
    assert torch.allclose(projector.outside(x), x - inside)
    changed = x.clone()
    projector.project_(changed)
    assert torch.allclose(changed, x - inside)
    assert projector.columns == min(rank, D / 2)
