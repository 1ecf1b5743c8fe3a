"""Sweeps over angles: the geometry of the tasks, the theorems at every angle, and invalid arguments."""

from __future__ import annotations

import io
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cuber.errors import CuberError
from cuber.report.drawing import styled
from cuber.report.theory_sweep import show_sweep, sweep_figure
from cuber.theory import draw, follow, rule_1
from cuber.theory.sweep import KINDS, sweep

exact = st.sampled_from(["least-squares", "logistic"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("degrees", [0, 30, 90, 135, 180])
def test_the_ratio_is_the_cosine_of_the_angle(kind: str, degrees: float) -> None:
    """The new gradient lies in the rotated subspace, all of whose directions have this angle to the old one."""
    tasks = draw(kind, degrees)
    assert tasks.ratio == pytest.approx(abs(math.cos(math.radians(degrees))), abs=1e-12)
    assert abs(tasks.cosine) <= tasks.ratio + 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_the_old_gradient_lies_in_the_old_subspace_and_rule_1_leaves_the_old_task_alone(kind: str) -> None:
    tasks = draw(kind, 60, seed=1)
    outside = tasks.g_old - tasks.g_old @ tasks.basis @ tasks.basis.T
    assert outside.norm() < 1e-12 * tasks.g_old.norm()
    path = follow(rule_1, tasks, 0.1, 5)
    assert path.old_losses == pytest.approx([path.old_losses[0]] * 6, rel=1e-12)
    assert path.joint_losses[-1] < path.joint_losses[0]


def test_the_same_seed_draws_the_same_tasks_and_another_others() -> None:
    starts = [draw("logistic", 45, seed).start for seed in (0, 0, 1)]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


@given(exact, st.integers(0, 2**31), st.integers(1, 15), st.integers(0, 4))
def test_what_the_theorems_promise_is_kept_at_every_angle(kind: str, seed: int, steps: int, old_steps: int) -> None:
    swept = sweep(kind, angles=4, seed=seed, steps=steps, old_steps=old_steps)
    assert swept.results[0].theorem_1.condition("gamma").holds  # by the choice of the step size
    for result in swept.results:
        path, other = result.by_rule_2, result.by_rule_1
        if result.theorem_1.holds:
            assert all(a <= b + 1e-12 for a, b in zip(path.joint_losses, result.joint_bounds, strict=True))
        if result.theorem_2_1.holds:
            assert path.joint_losses[1] <= other.joint_losses[1] + 1e-12
        if result.theorem_2_2.holds or result.theorem_2_2_sharper.holds:
            assert result.backward_transfer >= -1e-12
        if result.theorem_2_2.holds:
            assert result.theorem_2_2_sharper.holds


def test_there_are_angles_at_which_theorems_hold_at_which_they_fail_and_at_which_rule_2_wins_all_the_same() -> None:
    results = sweep("logistic").results
    assert results[0].theorem_2_1.holds
    assert not any(result.theorem_1.holds for result in results[6:])  # from a right angle on
    unpromised = [result for result in results if result.advantage > 0.01 and not result.theorem_2_1.holds]
    assert {result.degrees for result in unpromised} >= {60.0, 180.0}
    assert results[-1].backward_transfer < 0  # and that victory is the old task's loss


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "logistik"}, "there is no kind of task 'logistik'; did you mean 'logistic'"),
        ({"angles": 1}, "a sweep takes 2 to 1,000 angles, not 1"),
        ({"angles": 10**9}, "a sweep takes 2 to 1,000 angles, not 1000000000"),
        ({"steps": 0}, "a sweep takes 1 to 10,000 steps, not 0"),
        ({"steps": 10**9}, "a sweep takes 1 to 10,000 steps"),
        ({"old_steps": -1}, "a sweep takes 0 to 10,000 steps of the old task, not -1"),
        ({"old_steps": 10**9}, "a sweep takes 0 to 10,000 steps of the old task"),
        ({"step_size": 0.0}, r"the step size must be above 0 and at most 1e\+06, not 0"),
        ({"step_size": math.nan}, "the step size must be above 0 and at most .*, not nan"),
        ({"step_size": 1e308}, r"the step size must be above 0 and at most .*, not 1e\+308"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, float], sentence: str) -> None:
    with pytest.raises(CuberError, match=sentence):
        sweep(**{"kind": "logistic", **changes})


@pytest.mark.parametrize("kind", ["least-squares", "logistic"])
def test_paths_that_leave_every_bound_are_shown(kind: str) -> None:
    swept = sweep(kind, angles=2, steps=200, step_size=1e6)
    show_sweep(swept, Console(file=io.StringIO()))
    with styled():
        sweep_figure(swept).savefig(io.BytesIO())
