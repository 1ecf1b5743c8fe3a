"""Counterexamples to statements of the paper; docs/theory.md explains them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuber.theory import TwoTasks, follow, largest_step, least_squares, positive_correlation, rule_1, rule_2
from cuber.theory.theorems import joint_gradient_is_small, joint_loss_falls, old_loss_is_kept, rule_2_beats_rule_1
from cuber.theory.thresholds import largest_backward_step, largest_joint_step
from tests.theory.problems import at, line, two_tasks

WHOLE = torch.eye(1, dtype=torch.float64)


@pytest.mark.parametrize("steps", [1, 10, 200])
def test_theorem_1_1_does_not_lead_to_the_best_joint_model_however_many_steps(steps: int) -> None:
    """The K steps together are shorter than gamma ||g1|| / H, and the best model is farther away."""
    tasks = TwoTasks(line(1, 0), line(1, 2), at(-0.5), WHOLE)
    path = follow(rule_2, tasks, 0.999 * largest_step(tasks, steps), steps)
    assert joint_loss_falls(path).holds
    assert (path.weights[-1] - tasks.start).norm() < tasks.g_old.norm() / tasks.H.value == 0.25
    best = tasks.joint(at(1.0))
    assert path.joint_losses[-1] > best + 1.0


def test_beyond_its_steps_rule_2_passes_the_best_joint_model_and_goes_to_the_new_tasks_own() -> None:
    tasks = TwoTasks(line(1, 0), line(1, 2), at(-0.5), WHOLE)
    path = follow(rule_2, tasks, 0.999 * largest_step(tasks, 10), 2000)
    assert path.weights[-1].item() == pytest.approx(2)
    assert min(path.joint_losses) == pytest.approx(1, abs=1e-3)
    assert path.joint_losses[-1] == pytest.approx(2)


def test_the_smoothness_of_the_old_task_is_needed() -> None:
    """With H from the new task alone all conditions of theorem 1 hold, and one step raises the joint loss."""
    tasks = TwoTasks(line(100, 0), line(1, 2), at(-0.01), WHOLE)
    old, new = float(tasks.g_old.norm()), float(tasks.g_new.norm())
    of_new_alone = 0.999 * largest_joint_step(tasks.cosine, H=2.0, B=new, K=1, old=old, new=new)
    assert of_new_alone > 0
    path = follow(rule_2, tasks, of_new_alone, 1)
    assert path.joint_losses[1] > 2 * path.joint_losses[0]
    assert not joint_loss_falls(path).holds  # H is twice the larger of both


@pytest.mark.parametrize("kind", ["quadratic", "logistic", "periodic"])
@given(seed=st.integers(0, 2**31), share=st.floats(0.01, 0.999), steps=st.integers(1, 20))
def test_theorem_1_2_is_true_of_the_first_weights_already_and_so_of_any_path(
    kind: str, seed: int, share: float, steps: int
) -> None:
    """H-smooth means ||grad F||^2 <= 2 H (F - F*), and alpha K < ||g1|| / (H B): with B >= ||g1|| nothing is left."""
    tasks = two_tasks(kind, seed)
    old = float(tasks.g_old.norm())
    H, B = tasks.H.value, max(tasks.B.value, old)  # as printed: of both losses
    path = follow(rule_2, tasks, share * min(1 / H, old / (H * B * steps)), steps)
    at_the_start = float((tasks.g_old + tasks.g_new).norm()) ** 2
    assert joint_gradient_is_small(path).terms["progress"] >= at_the_start


def test_theorem_2_1_is_not_true_of_any_initial_model() -> None:
    """The conditions are about w0; from a model between the minima of both tasks, rule 2 loses."""
    tasks = TwoTasks(line(1, 0), line(1, 1), at(-1.0), WHOLE)
    path = follow(rule_2, tasks, 0.5 * largest_step(tasks, 1), 1)
    assert rule_2_beats_rule_1(path).holds
    elsewhere = at(0.9)
    gradient = tasks.new.gradient(elsewhere)
    by_1, by_2 = (elsewhere - path.step_size * rule(gradient, tasks.basis) for rule in (rule_1, rule_2))
    assert torch.equal(by_1, elsewhere)
    assert tasks.joint(by_2) > tasks.joint(by_1)


@given(st.floats(1e-4, 10.0))
def test_at_eps2_0_every_step_may_harm_the_old_task(alpha: float) -> None:
    """Gradients at a right angle meet the paper's eps2 = 0, and the old loss rises at any step size."""
    assert largest_backward_step(0.0, H=2.0, B=1.0, k=1, old=1.0) == 0
    ball = least_squares(torch.eye(2).double() * 2**0.5, torch.zeros(2, 1).double())
    uphill = least_squares(torch.tensor([[0.0, 1.0]]).double(), torch.ones(1, 1).double())
    tasks = TwoTasks(ball, uphill, at(1.0, 0.0), torch.eye(2).double())
    assert tasks.cosine == 0
    path = follow(rule_2, tasks, alpha, 1)
    assert path.old_losses[1] > path.old_losses[0]
    assert not old_loss_is_kept(path, eps2=0.0).holds


def test_rule_1_keeps_the_old_loss_only_if_the_subspace_holds_all_that_the_old_task_sees() -> None:
    """It is not enough that the old gradient lies in the subspace at the start."""
    inputs, targets = torch.eye(2).double(), torch.tensor([[1.0], [0.0]]).double()
    old = least_squares(inputs, targets)
    new = least_squares(torch.tensor([[0.0, 1.0]]).double(), torch.ones(1, 1).double())
    seen, gradient_only = torch.eye(2).double(), torch.eye(2).double()[:, :1]
    start = at(0.0, 0.0)
    assert torch.count_nonzero(old.gradient(start) @ (torch.eye(2).double() - gradient_only @ gradient_only.T)) == 0
    kept = follow(rule_1, TwoTasks(old, new, start, seen), 0.1, 5)
    lost = follow(rule_1, TwoTasks(old, new, start, gradient_only), 0.1, 5)
    assert kept.old_losses == [kept.old_losses[0]] * 6
    assert lost.old_losses[-1] > lost.old_losses[0]


def test_a_converged_old_task_admits_no_step() -> None:
    """With ||g1|| = 0, theorem 1 admits no step size, and all cosines are 0."""
    tasks = TwoTasks(line(1, 0), line(1, 2), at(0.0), WHOLE)
    assert positive_correlation(tasks.g_old, tasks.g_new) == 0
    assert largest_step(tasks, 1) == 0
    path = follow(rule_2, tasks, 1e-6, 1)
    assert not joint_loss_falls(path).holds
    assert path.old_losses[1] > path.old_losses[0]
