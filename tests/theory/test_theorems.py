"""The bounds of the theorems hold for random tasks that meet their conditions."""

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
    Constant,
    Loss,
    Trajectory,
    TwoTasks,
    follow,
    largest_step,
    rule_1,
    rule_2,
    sufficient_projection,
    theorems,
)
from cuber.theory.theorems import (
    joint_gradient_is_small,
    joint_loss_bounds,
    joint_loss_falls,
    old_loss_bounds,
    old_loss_is_kept,
    rule_2_beats_rule_1,
)
from cuber.theory.thresholds import largest_backward_step, smallest_eps1
from tests.theory.problems import at, line, two_tasks

seeds = st.integers(0, 2**31)
convex = st.sampled_from(["quadratic", "logistic"])
any_kind = st.sampled_from(["quadratic", "logistic", "periodic"])
shares = st.floats(0.01, 0.999)
steps = st.integers(1, 12)
ROUNDING = 1e-12


def admitted(tasks: TwoTasks, share: float, count: int) -> Trajectory:
    """Follow rule 2 with a share of the step size that theorem 1 admits; skip tasks without one."""
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
    bounds = joint_loss_bounds(path)
    assert bounds[0] == path.joint_losses[0]
    assert bounds[-1] == pytest.approx(path.joint_losses[0] + theorem.bound)
    for k in range(count):
        promised = bounds[k + 1] - bounds[k]
        assert promised < 0
        assert path.joint_losses[k + 1] - path.joint_losses[k] <= promised + ROUNDING


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
    """From w0, whether or not the basis spans the inputs of the old task."""
    path = admitted(two_tasks(kind, seed, inside=inside), share, count)
    theorem = rule_2_beats_rule_1(path)
    assume(theorem.holds)
    other = follow(rule_1, path.tasks, path.step_size, 1)
    assert theorem.bound <= 0
    difference = path.joint_losses[1] - other.joint_losses[1]
    assert difference <= ROUNDING
    if inside:  # what the proof's bound needs, though the statement does not
        assert difference <= theorem.bound + ROUNDING


@given(st.floats(0, 0.999999), st.floats(0, 1))
def test_theorem_2_1_asks_for_more_than_its_other_proof_needs(alpha_times_H: float, further: float) -> None:
    """The inequality of docs/theory.md for old gradients outside the subspace."""
    least = smallest_eps1(alpha_times_H, H=1.0)
    ratio = least + further * (1 - least)
    outside = math.sqrt(max(0.0, 1 - ratio**2))
    assert 2 * ratio - 1 >= alpha_times_H * (outside + ratio / 2)


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
    alpha = share * largest_backward_step(tasks.cosine, tasks.H.value, tasks.B.value, count, old, sharper=True)
    assume(alpha * tasks.H.value <= 1)  # as B is the first gradient, which larger steps may exceed
    path = follow(rule_2, tasks, alpha / (1 if sharper else math.sqrt(count)), count)
    theorem = old_loss_is_kept(path, sharper=sharper)
    assert path.old_losses[-1] - path.old_losses[0] <= theorem.bound + ROUNDING
    assert all(loss <= bound + ROUNDING for loss, bound in zip(path.old_losses, old_loss_bounds(path), strict=True))
    if theorem.holds:
        assert theorem.bound <= 0


def test_the_sharper_bound_is_met_where_the_path_is_straight() -> None:
    """With a constant new gradient and the largest curvature of the old loss, the bound is tight."""
    old = line(2.0, lowest_at=0.0)
    new = line(1e-9, lowest_at=-1e9)  # pulls to the left with 1, almost everywhere
    tasks = TwoTasks(old, new, at(1.0), torch.eye(1).double())
    count, largest = 8, largest_backward_step(1.0, H=4.0, B=1.0, k=8, old=2.0, sharper=True)
    just = follow(rule_2, tasks, largest, count)
    assert just.old_losses[-1] == pytest.approx(just.old_losses[0])
    assert follow(rule_2, tasks, 1.01 * largest, count).old_losses[-1] > just.old_losses[0]


def test_a_condition_says_by_how_much_it_holds() -> None:
    enough, too_large = Condition("cosine", 0.5, ">=", 0.25), Condition("step size", 0.3, "<", 0.1)
    assert (enough.holds, enough.margin, str(enough)) == (True, 0.25, "cosine: 0.5 >= 0.25 holds")
    assert (too_large.holds, str(too_large)) == (False, "step size: 0.3 < 0.1 fails")
    assert too_large.margin == pytest.approx(-0.2)
    assert not Condition("step size", 0.1, "<", 0.1).holds


def test_every_number_of_the_theorems_by_hand() -> None:
    """Parabolas: g1 = -0.5, g2 = -2.5 and then -2.475, H = 2 * max(1, 1), B = 2.5, gamma = 0.01 * 2 * 2.5 * 2 / 0.5."""
    tasks = TwoTasks(line(1, 0), line(1, 2), at(-0.5), torch.eye(1).double())
    path = follow(rule_2, tasks, step_size=0.01, steps=2)
    assert (tasks.H.value, tasks.B.value, tasks.cosine, tasks.ratio) == (2, 2.5, 1, 1)
    energy, length = 2.5**2 + 2.475**2, 2.5 + 2.475
    expected = {
        "1 (1)": ([0.5, 1.0, 2.5, 2.04 * 0.5 / 10], {"descent": -0.005 * energy, "curvature": 0.0001 * energy}),
        "1 (2)": ([0.5, 1.0, 2.5], {"progress": 2 / 0.02 * (0.125 + 3.125), "old gradient": 0.5, "drift": 0.005}),
        "2 (1)": (
            [0.5, 1.0, 2.5, math.sqrt(1.04 / 2.02), 2.04 * 0.5 / 10],
            {"rule 2's step": -0.005 * 0.98 * 6.25, "rule 1's step": 0.0},
        ),
        "2 (2)": ([4 * 0.5 / (5 * 2**1.5), 2.5, 1.0], {"agreement": -0.005 * length, "curvature": 0.0001 * energy}),
        "2 (2), sharper": ([0.2, 2.5, 1.0], {"agreement": -0.005 * length, "curvature": 0.00005 * length**2}),
    }
    found = {theorem.name: theorem for theorem in theorems(path)}
    assert found.keys() == expected.keys()
    for name, (asked, terms) in expected.items():
        assert found[name].holds
        assert [condition.asked for condition in found[name].conditions] == pytest.approx(asked)
        assert found[name].terms == pytest.approx(terms)
        assert found[name].bound == pytest.approx(sum(terms.values()))
    assert str(found["1 (1)"]).splitlines() == [
        "theorem 1 (1): F(w_K) - F(w_0) <= -0.0619 (descent) + 0.00124 (curvature) = -0.0606",
        "  step size: 0.01 < 0.5 holds",
        "  gamma: 0.2 < 1 holds",
        "  Lipschitz constant: 2.5 >= 2.5 holds",
        "  positive correlation: 1 >= 0.102 holds",
    ]


def test_the_less_smooth_loss_decides_and_both_must_be_proven() -> None:
    steep, gentle = line(3, 0), Loss(lambda weight: weight.sum(), Constant(1.0, exact=False), convex=True)
    for old, new in ((steep, gentle), (gentle, steep)):
        H = TwoTasks(old, new, at(1.0), torch.eye(1).double()).H
        assert (H.value, H.exact) == (6.0, False)


def test_a_lipschitz_constant_that_the_path_exceeds_proves_nothing() -> None:
    """Steps that overshoot make the gradient grow beyond the first one."""
    tasks = TwoTasks(line(1e-3, 0), line(1, 2), at(1000.0), torch.eye(1).double())
    path = follow(rule_2, tasks, step_size=2.5, steps=3)
    assert path.norms[-1] > 2 * path.norms[0]
    assert [theorem.condition("Lipschitz constant").holds for theorem in theorems(path)] == [False] * 5


def test_losses_that_do_not_curve_set_no_limit_to_the_step() -> None:
    slope = Loss(lambda weight: weight.sum(), Constant(0.0, exact=True), convex=True)
    tasks = TwoTasks(slope, slope, at(1.0), torch.eye(1).double())
    assert largest_step(tasks, 3) == math.inf
    assert all(theorem.holds for theorem in theorems(follow(rule_2, tasks, 100.0, 3)))


@pytest.mark.parametrize(("alpha", "count"), [(0.0, 1), (-1.0, 3), (math.nan, 1), (0.1, 0)])
def test_a_path_must_lead_somewhere(alpha: float, count: int) -> None:
    with pytest.raises(CuberError, match="a path takes a step size above 0 and 1 step or more"):
        follow(rule_2, two_tasks("quadratic", 0), alpha, count)
