"""Constants of losses: proven ones are tight bounds, estimated ones agree with the Hessian."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cuber.errors import CuberError
from cuber.theory import Constant, Loss, TwoTasks, draw, estimated, follow, power_iteration, rule_2
from cuber.theory.losses import largest_curvature
from tests.theory.problems import MAKERS, D, at, line, two_tasks


def hessian(loss: Loss, weight: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(loss.value, weight).reshape(weight.numel(), -1)


@pytest.mark.parametrize("kind", MAKERS)
@given(seed=st.integers(0, 2**31))
def test_proven_constants_bound_every_hessian_and_every_gradient(kind: str, seed: int) -> None:
    tasks = two_tasks(kind, seed)
    generator = torch.Generator().manual_seed(seed)
    for loss in (tasks.old, tasks.new):
        weight = 2 * torch.randn(1, D, generator=generator, dtype=torch.float64)
        assert torch.linalg.matrix_norm(hessian(loss, weight), 2) <= loss.smoothness.value * (1 + 1e-9)
        assert loss.lipschitz is None or loss.gradient(weight).norm() <= loss.lipschitz.value * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
def test_proven_smoothness_is_reached(kind: str) -> None:
    """For the quadratic everywhere; for logistic regression at 0, where the curvature is largest."""
    loss = two_tasks(kind, seed=1).new
    zero = torch.zeros(1, D, dtype=torch.float64)
    assert torch.linalg.matrix_norm(hessian(loss, zero), 2) == pytest.approx(loss.smoothness.value)


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
@given(seed=st.integers(0, 2**31))
def test_the_first_gradient_of_a_convex_loss_bounds_all_that_follow(kind: str, seed: int) -> None:
    tasks = two_tasks(kind, seed)
    path = follow(rule_2, tasks, step_size=1 / tasks.H.value, steps=10)
    assert tasks.B.exact
    assert max(path.norms) <= tasks.B.value * (1 + 1e-9)


@given(st.integers(0, 2**31), st.floats(-1, 1))
def test_power_iteration_finds_the_largest_eigenvalue_whatever_its_sign(seed: int, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    matrix = half + half.T + shift * torch.eye(6)
    found = power_iteration(lambda v: matrix @ v, torch.zeros(6, dtype=torch.float64))
    largest = float(torch.linalg.matrix_norm(matrix, 2))
    assert 0.9 * largest <= found <= largest * (1 + 1e-9)


def test_estimated_constants_are_those_of_the_points_looked_at() -> None:
    tasks = draw("network", degrees=60, seed=3)
    points = [tasks.start, tasks.start + 0.1]
    loss = estimated(tasks.new.value, points)
    expected = max(float(torch.linalg.matrix_norm(hessian(loss, point), 2)) for point in points)
    assert loss.smoothness.value == pytest.approx(expected, rel=0.02)
    assert loss.lipschitz is not None
    assert loss.lipschitz.value == pytest.approx(max(float(loss.gradient(point).norm()) for point in points))
    assert not loss.smoothness.exact
    assert not loss.lipschitz.exact


def test_a_linear_function_has_no_curvature() -> None:
    assert largest_curvature(lambda weight: weight.sum(), at(1, 2)) == 0


def test_curvature_does_not_change_the_global_random_state() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    largest_curvature(lambda weight: weight.square().sum(), at(1, 2))
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_and_basis_must_fit() -> None:
    with pytest.raises(CuberError, match=r"weights are 1 x 2 and the basis 3 x 1: give out x d and d x rank"):
        TwoTasks(line(1, 0), line(1, 1), at(0, 0), torch.eye(3)[:, :1])


def test_what_is_not_convex_must_say_how_steep_it_gets() -> None:
    unknown = Loss(lambda weight: weight.sin().sum(), Constant(1.0, exact=True))
    with pytest.raises(CuberError, match="Lipschitz constant must be given"):
        TwoTasks(line(1, 0), unknown, at(0.0), torch.eye(1))
