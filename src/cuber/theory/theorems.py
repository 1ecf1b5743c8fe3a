"""Theorems 1 and 2 on a path of rule 2: their conditions, the margins, and the bounds.

The conditions are those that the proofs need; docs/theory.md lists the differences from the printed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from cuber.theory import thresholds
from cuber.theory.two_tasks import Trajectory, TwoTasks


@dataclass(frozen=True)
class Condition:
    """A condition on a number: ``found >= asked`` or ``found < asked``."""

    name: str
    found: float
    relation: str
    asked: float

    @property
    def margin(self) -> float:
        """Distance from the limit; negative if the condition fails."""
        return self.asked - self.found if self.relation == "<" else self.found - self.asked

    @property
    def holds(self) -> bool:
        return self.margin > 0 if self.relation == "<" else self.margin >= 0

    def __str__(self) -> str:
        return f"{self.name}: {self.found:.3g} {self.relation} {self.asked:.3g} {'holds' if self.holds else 'fails'}"


@dataclass(frozen=True)
class Theorem:
    """The conditions of a theorem and its bound: ``quantity <= sum of the terms``."""

    name: str
    conditions: list[Condition]
    quantity: str
    terms: Mapping[str, float]

    @property
    def holds(self) -> bool:
        """Whether all conditions hold; if not, the bound is not proven."""
        return all(condition.holds for condition in self.conditions)

    @property
    def bound(self) -> float:
        return sum(self.terms.values())

    def condition(self, name: str) -> Condition:
        return next(condition for condition in self.conditions if condition.name == name)

    def __str__(self) -> str:
        terms = " + ".join(f"{value:.3g} ({name})" for name, value in self.terms.items())
        lines = [f"theorem {self.name}: {self.quantity} <= {terms} = {self.bound:.3g}", *map(str, self.conditions)]
        return "\n  ".join(lines)


def _conditions(path: Trajectory) -> list[Condition]:
    """Return the conditions of theorem 1 (1); the others share some of them."""
    tasks, H, B = path.tasks, path.tasks.H.value, path.tasks.B.value
    gamma = thresholds.smallest_gamma(path.step_size, H, B, path.steps, tasks.norms[0])
    return [
        Condition("step size", path.step_size, "<", thresholds.largest_smooth_step(H)),
        Condition("gamma", gamma, "<", 1.0),
        # B may be estimated, or the steps too long for its proof: check it along the path.
        Condition("Lipschitz constant", B, ">=", max(path.norms)),
        Condition("positive correlation", tasks.cosine, ">=", thresholds.smallest_eps2(gamma, *tasks.norms)),
    ]


def joint_loss_falls(path: Trajectory) -> Theorem:
    """Theorem 1 (1), as its proof shows it: every step of rule 2 decreases the joint loss. Needs no convexity."""
    alpha, H, energy = path.step_size, path.tasks.H.value, sum(norm**2 for norm in path.norms)
    terms = {"descent": -alpha / 2 * energy, "curvature": alpha**2 * H / 2 * energy}
    return Theorem("1 (1)", _conditions(path), "F(w_K) - F(w_0)", terms)


def joint_gradient_is_small(path: Trajectory) -> Theorem:
    """Theorem 1 (2): a bound on the smallest gradient norm of the joint loss. Does not need definition 2."""
    tasks, (old, _) = path.tasks, path.tasks.norms
    step_size, gamma, lipschitz, _ = _conditions(path)
    terms = {
        "progress": 2 / (path.step_size * path.steps) * (tasks.joint(tasks.start) - tasks.lowest),
        "old gradient": 2 * old**2,
        "drift": gamma.found**2 / 2 * old**2,
    }
    return Theorem("1 (2)", [step_size, gamma, lipschitz], "min ||grad F(w_k)||^2", terms)


def rule_2_beats_rule_1(path: Trajectory) -> Theorem:
    """Theorem 2 (1): after one step from w0, rule 2 has a lower joint loss than rule 1."""
    tasks, alpha, H = path.tasks, path.step_size, path.tasks.H.value
    energy = tasks.norms[1] ** 2
    terms = {
        "rule 2's step": -alpha / 2 * (1 - alpha * H) * energy,
        "rule 1's step": alpha * (1 + alpha * H / 2) * (1 - tasks.ratio**2) * energy,
    }
    projection = Condition("sufficient projection", tasks.ratio, ">=", thresholds.smallest_eps1(alpha, H))
    *others, correlation = _conditions(path)
    return Theorem("2 (1)", [*others, projection, correlation], "F(rule 2) - F(rule 1)", terms)


def old_loss_is_kept(path: Trajectory, eps2: float | None = None, *, sharper: bool = False) -> Theorem:
    """Theorem 2 (2): K steps of rule 2 do not increase the old task's loss.

    ``eps2`` is the cosine that is required at every step (default: the smallest one of the path). ``sharper`` bounds
    the length of the path by ``||sum g2||^2 <= (sum ||g2||)^2`` instead of the paper's ``K sum ||g2||^2``.
    """
    tasks, alpha, H, (old, _) = path.tasks, path.step_size, path.tasks.H.value, path.tasks.norms
    least = min(path.cosines)
    required = least if eps2 is None else eps2
    length = sum(path.norms) ** 2 if sharper else path.steps * sum(norm**2 for norm in path.norms)
    terms = {"agreement": -alpha * required * old * sum(path.norms), "curvature": alpha**2 * H / 4 * length}
    largest = thresholds.largest_backward_step(required, H, tasks.B.value, path.steps, old, sharper=sharper)
    step_size = Condition("step size", alpha, "<", largest)
    correlation = Condition("positive correlation at every step", least, ">=", required)
    conditions = [step_size, _conditions(path)[2], correlation]
    return Theorem("2 (2), sharper" if sharper else "2 (2)", conditions, "L1(w_K) - L1(w_0)", terms)


def theorems(path: Trajectory) -> list[Theorem]:
    """Return all theorems on a path of rule 2, the last one also in its sharper form."""
    statements = [joint_loss_falls, joint_gradient_is_small, rule_2_beats_rule_1, old_loss_is_kept]
    return [*(statement(path) for statement in statements), old_loss_is_kept(path, sharper=True)]


def largest_step(tasks: TwoTasks, steps: int) -> float:
    """Return the step size that theorem 1 must stay below for ``steps`` steps, or 0 if it admits none."""
    return thresholds.largest_joint_step(tasks.cosine, tasks.H.value, tasks.B.value, steps, *tasks.norms)


def joint_loss_bounds(path: Trajectory) -> list[float]:
    """Return the bounds of theorem 1 (1) on the joint loss after 0, 1, ... steps."""
    alpha, H = path.step_size, path.tasks.H.value
    changes = [-alpha / 2 * (1 - alpha * H) * norm**2 for norm in path.norms]
    return list(accumulate(changes, initial=path.joint_losses[0]))


def old_loss_bounds(path: Trajectory) -> list[float]:
    """Return the bounds of the sharper theorem 2 (2) on the old task's loss after 0, 1, ... steps."""
    alpha, H, (old, _) = path.step_size, path.tasks.H.value, path.tasks.norms
    so_far = zip(accumulate(path.cosines, min), accumulate(path.norms), strict=True)
    changes = [-alpha * least * old * length + alpha**2 * H / 4 * length**2 for least, length in so_far]
    return [path.old_losses[0] + change for change in (0.0, *changes)]
