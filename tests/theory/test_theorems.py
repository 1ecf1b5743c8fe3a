"""The theorems hold for random tasks that meet their conditions: by the bound, not only by its sign."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from cuber.errors import CuberError
from cuber.theory import (
    Condition,
    Path,
    TwoTasks,
    follow,
    joint_gradient_is_small,
    joint_loss_falls,
    largest_step,
    old_loss_is_kept,
    rule_1,
    rule_2,
    rule_2_beats_rule_1,
    sufficient_projection,
)
from cuber.theory.theorems import joint_loss_bounds, old_loss_bounds
from cuber.theory.thresholds import sharper_backward_step, smallest_eps1
from tests.theory.problems import at, line, two_tasks

seeds = st.integers(0, 2**31)
convex = st.sampled_from(["quadratic", "logistic"])
any_kind = st.sampled_from(["quadratic", "logistic", "periodic"])
shares = st.floats(0.01, 0.999)
steps = st.integers(1, 12)
ROUNDING = 1e-12


def admitted(tasks: TwoTasks, share: float, count: int) -> Path:
    """A path with a share of the step size that theorem 1 admits, which must admit one."""
    largest = largest_step(tasks, count)
    assume(largest > 0)
    return follow(rule_2, tasks, share * largest, count)


def joint_gradient(tasks: TwoTasks, weight: Tensor) -> float:
    return float((tasks.old.gradient(weight) + tasks.new.gradient(weight)).norm())


@given(any_kind, seeds, shares, steps)
def test_theorem_1_1_the_joint_loss_falls_at_every_step_by_what_is_promised(
    kind: str, seed: int, share: float, count: int
) -> None:
    path = admitted(two_tasks(kind, seed), share, count)
    theorem = joint_loss_falls(path)
    assert theorem.holds
    promised = list(theorem.terms.values())
    for k, (before, after) in enumerate(zip(path.joint_losses, path.joint_losses[1:], strict=False)):
        assert promised[k] < 0
        assert after - before <= promised[k] + ROUNDING
    bounds = joint_loss_bounds(path)
    assert bounds[-1] == pytest.approx(path.joint_losses[0] + theorem.bound)
    assert all(loss <= bound + ROUNDING for loss, bound in zip(path.joint_losses, bounds, strict=True))


@given(seeds, shares, steps)
def test_theorem_1_2_bounds_the_smallest_joint_gradient_of_what_is_not_convex(
    seed: int, share: float, count: int
) -> None:
    tasks = two_tasks("periodic", seed)
    H, B, old = tasks.H.value, tasks.B.value, float(tasks.g_old.norm())
    path = follow(rule_2, tasks, share * min(1 / H, old / (H * B * count)), count)
    theorem = joint_gradient_is_small(path)
    assert theorem.holds  # whatever the cosine
    squares = [joint_gradient(tasks, weight) ** 2 for weight in path.weights[:-1]]
    assert min(squares) <= theorem.bound
    # What the proof has before it forgets how far the joint loss came is far sharper, and can fail.
    alpha = path.step_size
    achieved = 2 / (alpha * count) * (path.joint_losses[0] - path.joint_losses[-1])
    spent = (1 - alpha * H) / count * sum(norm**2 for norm in path.norms)
    mean = sum(squares) / count
    assert mean <= achieved + theorem.terms["old gradient"] + theorem.terms["drift"] - spent + ROUNDING


@given(convex, seeds, shares, steps, st.booleans())
def test_theorem_2_1_one_step_of_rule_2_beats_one_of_rule_1(
    kind: str, seed: int, share: float, count: int, inside: bool
) -> None:
    """From the start, and whether or not the basis spans what the old task sees."""
    path = admitted(two_tasks(kind, seed, inside=inside), share, count)
    theorem = rule_2_beats_rule_1(path)
    assume(theorem.holds)
    other = follow(rule_1, path.tasks, path.step_size, 1)
    assert theorem.bound <= 0
    difference = path.joint_losses[1] - other.joint_losses[1]
    assert difference <= ROUNDING
    if inside:  # what the proof's bound needs, though the statement does not
        assert difference <= theorem.bound + ROUNDING


@given(convex, seeds, shares, st.integers(2, 12), st.data())
def test_theorem_2_1_holds_at_later_weights_where_definition_1_holds_there(
    kind: str, seed: int, share: float, count: int, data: st.DataObject
) -> None:
    tasks = two_tasks(kind, seed)
    path = admitted(tasks, share, count)
    weight = path.weights[data.draw(st.integers(1, count - 1))]
    new = tasks.new.gradient(weight)
    assume(sufficient_projection(new, tasks.basis) >= smallest_eps1(path.step_size, tasks.H.value))
    by_1, by_2 = (weight - path.step_size * rule(new, tasks.basis) for rule in (rule_1, rule_2))
    assert tasks.joint(by_2) <= tasks.joint(by_1) + ROUNDING


@given(convex, seeds, shares, steps, st.booleans())
def test_theorem_2_2_the_old_loss_is_kept_as_printed_and_sharpened(
    kind: str, seed: int, share: float, count: int, sharper: bool
) -> None:
    tasks = two_tasks(kind, seed)
    assume(tasks.cosine > 0.01)
    old = float(tasks.g_old.norm())
    alpha = share * sharper_backward_step(tasks.cosine, tasks.H.value, tasks.B.value, count, old)
    assume(alpha * tasks.H.value <= 1)  # as B is the first gradient, which larger steps may exceed
    path = follow(rule_2, tasks, alpha / (1 if sharper else math.sqrt(count)), count)
    theorem = old_loss_is_kept(path, sharper=sharper)
    assert path.old_losses[-1] - path.old_losses[0] <= theorem.bound + ROUNDING
    assert all(loss <= bound + ROUNDING for loss, bound in zip(path.old_losses, old_loss_bounds(path), strict=True))
    if theorem.holds:
        assert theorem.bound <= 0


def test_the_sharper_bound_is_met_where_the_path_is_straight() -> None:
    """A new task whose gradient stays put, an old one that curves as much as it may: nothing is given away."""
    old = line(2.0, lowest_at=0.0)
    new = line(1e-9, lowest_at=-1e9)  # pulls to the left with 1, almost everywhere
    tasks = TwoTasks(old, new, at(1.0), torch.eye(1).double())
    count, largest = 8, sharper_backward_step(1.0, H=4.0, B=1.0, k=8, old=2.0)
    just = follow(rule_2, tasks, largest, count)
    assert just.old_losses[-1] == pytest.approx(just.old_losses[0])
    assert follow(rule_2, tasks, 1.01 * largest, count).old_losses[-1] > just.old_losses[0]


def test_a_condition_says_by_how_much_it_holds() -> None:
    enough, too_large = Condition("cosine", 0.5, at_least=0.25), Condition("step size", 0.3, below=0.1)
    assert (enough.holds, enough.margin, str(enough)) == (True, 0.25, "cosine: 0.5 >= 0.25 holds")
    assert (too_large.holds, str(too_large)) == (False, "step size: 0.3 < 0.1 fails")
    assert too_large.margin == pytest.approx(-0.2)
    assert not Condition("step size", 0.1, below=0.1).holds


def test_a_theorem_names_its_terms() -> None:
    path = follow(rule_2, two_tasks("quadratic", 2), step_size=0.01, steps=2)
    assert str(rule_2_beats_rule_1(path)).startswith("theorem 2 (1): F(rule 2) - F(rule 1) <= ")
    assert list(joint_gradient_is_small(path).terms) == ["progress", "old gradient", "drift"]


@pytest.mark.parametrize(("alpha", "count"), [(0.0, 1), (-1.0, 3), (math.nan, 1), (0.1, 0)])
def test_a_path_must_lead_somewhere(alpha: float, count: int) -> None:
    with pytest.raises(CuberError, match="a path takes a step size above 0 and 1 step or more"):
        follow(rule_2, two_tasks("quadratic", 0), alpha, count)
