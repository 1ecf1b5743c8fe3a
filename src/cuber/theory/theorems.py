"""Theorems 1 and 2 on a path of rule 2: which of their conditions hold, by how much, and the bound that follows.

The conditions are those that the proofs need; docs/theory.md says where the printed ones are not enough, or too many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from cuber.theory.rules import Path, TwoTasks
from cuber.theory.thresholds import (
    largest_backward_step,
    largest_joint_step,
    largest_smooth_step,
    sharper_backward_step,
    smallest_eps1,
    smallest_eps2,
    smallest_gamma,
)


@dataclass(frozen=True)
class Condition:
    """What a theorem asks of a number, and what the number is."""

    name: str
    found: float
    at_least: float | None = None
    below: float | None = None

    @property
    def asked(self) -> float:
        limit = self.below if self.at_least is None else self.at_least
        assert limit is not None, "a condition has one limit or the other"
        return limit

    @property
    def margin(self) -> float:
        """By how much it holds; negative where it fails."""
        return self.asked - self.found if self.at_least is None else self.found - self.asked

    @property
    def holds(self) -> bool:
        return self.margin > 0 if self.at_least is None else self.margin >= 0

    def __str__(self) -> str:
        relation = "<" if self.at_least is None else ">="
        return f"{self.name}: {self.found:.3g} {relation} {self.asked:.3g} {'holds' if self.holds else 'fails'}"


@dataclass(frozen=True)
class Theorem:
    """A theorem's conditions, and the bound that they buy: ``quantity <= sum of the terms``."""

    name: str
    conditions: list[Condition]
    quantity: str
    terms: Mapping[str, float]

    @property
    def holds(self) -> bool:
        """Whether all conditions do; else the bound is only a number."""
        return all(condition.holds for condition in self.conditions)

    @property
    def bound(self) -> float:
        return sum(self.terms.values())

    def condition(self, name: str) -> Condition:
        """One of the conditions."""
        return next(condition for condition in self.conditions if condition.name == name)

    def __str__(self) -> str:
        terms = " + ".join(f"{value:.3g} ({name})" for name, value in self.terms.items())
        lines = [f"theorem {self.name}: {self.quantity} <= {terms} = {self.bound:.3g}", *map(str, self.conditions)]
        return "\n  ".join(lines)


def joint_loss_falls(path: Path) -> Theorem:
    """Theorem 1 (1), what its proof shows: every step of rule 2 lowers the joint loss. Convexity is not needed."""
    alpha, H, energy = path.step_size, path.tasks.H.value, sum(norm**2 for norm in path.norms)
    terms = {"descent": -alpha / 2 * energy, "curvature": alpha**2 * H / 2 * energy}
    return Theorem("1 (1)", [*_step_conditions(path), _correlation(path)], "F(w_K) - F(w_0)", terms)


def joint_gradient_is_small(path: Path) -> Theorem:
    """Theorem 1 (2): a bound on the smallest gradient of the joint loss. Definition 2 is not needed."""
    tasks, old = path.tasks, float(path.tasks.g_old.norm())
    terms = {
        "progress": 2 / (path.step_size * path.steps) * (tasks.joint(tasks.start) - tasks.lowest),
        "old gradient": 2 * old**2,
        "drift": _gamma(path) ** 2 / 2 * old**2,
    }
    return Theorem("1 (2)", _step_conditions(path), "min ||grad F(w_k)||^2", terms)


def rule_2_beats_rule_1(path: Path) -> Theorem:
    """Theorem 2 (1): after one step from the start, the joint loss is lower by rule 2 than by rule 1."""
    tasks, alpha, H = path.tasks, path.step_size, path.tasks.H.value
    energy = float(tasks.g_new.norm()) ** 2
    terms = {
        "rule 2's step": -alpha / 2 * (1 - alpha * H) * energy,
        "rule 1's step": alpha * (1 + alpha * H / 2) * (1 - tasks.ratio**2) * energy,
    }
    projection = Condition("sufficient projection", tasks.ratio, at_least=smallest_eps1(alpha, H))
    conditions = [*_step_conditions(path), projection, _correlation(path)]
    return Theorem("2 (1)", conditions, "F(rule 2) - F(rule 1)", terms)


def old_loss_is_kept(path: Path, eps2: float | None = None, *, sharper: bool = False) -> Theorem:
    """Theorem 2 (2): all steps of rule 2 together do not raise the old task's loss.

    ``eps2`` is what the learner demands of each step's cosine; else the least that the path has. ``sharper`` bounds the
    way walked by the sum of its steps, ``||sum g2||^2 <= (sum ||g2||)^2``, where the paper has ``k sum ||g2||^2``.
    """
    tasks, alpha, k = path.tasks, path.step_size, path.steps
    old, H = float(tasks.g_old.norm()), tasks.H.value
    least = min(path.cosines)
    demanded = least if eps2 is None else eps2
    energy = sum(norm**2 for norm in path.norms)
    terms = {
        "agreement": -alpha * demanded * old * sum(path.norms),
        "curvature": alpha**2 * H / 4 * (sum(path.norms) ** 2 if sharper else path.steps * energy),
    }
    largest = (sharper_backward_step if sharper else largest_backward_step)(demanded, H, tasks.B.value, k, old)
    conditions = [
        Condition("step size", alpha, below=largest),
        _steepness(path),
        Condition("positive correlation at every step", least, at_least=demanded),
    ]
    return Theorem("2 (2), sharper" if sharper else "2 (2)", conditions, "L1(w_K) - L1(w_0)", terms)


def theorems(path: Path) -> list[Theorem]:
    """All that there are, the last one sharpened."""
    return [
        joint_loss_falls(path),
        joint_gradient_is_small(path),
        rule_2_beats_rule_1(path),
        old_loss_is_kept(path),
        old_loss_is_kept(path, sharper=True),
    ]


def largest_step(tasks: TwoTasks, steps: int) -> float:
    """The step size that theorem 1 must stay below for so many steps; 0 where it admits none."""
    old, new = float(tasks.g_old.norm()), float(tasks.g_new.norm())
    return largest_joint_step(tasks.cosine, tasks.H.value, tasks.B.value, steps, old, new)


# Bounds over the steps, for figures


def joint_loss_bounds(path: Path) -> list[float]:
    """What theorem 1 (1) says of the joint loss after 0, 1, ... steps."""
    alpha, H = path.step_size, path.tasks.H.value
    changes = [-alpha / 2 * (1 - alpha * H) * norm**2 for norm in path.norms]
    return list(accumulate(changes, initial=path.joint_losses[0]))


def old_loss_bounds(path: Path) -> list[float]:
    """What theorem 2 (2), sharpened, says of the old task's loss after 0, 1, ... steps."""
    alpha, old, H = path.step_size, float(path.tasks.g_old.norm()), path.tasks.H.value
    so_far = zip(accumulate(path.cosines, min), accumulate(path.norms), strict=True)
    changes = [-alpha * least * old * length + alpha**2 * H / 4 * length**2 for least, length in so_far]
    return [path.old_losses[0] + change for change in (0.0, *changes)]


# Conditions that theorems share


def _gamma(path: Path) -> float:
    tasks = path.tasks
    return smallest_gamma(path.step_size, tasks.H.value, tasks.B.value, path.steps, float(tasks.g_old.norm()))


def _step_conditions(path: Path) -> list[Condition]:
    return [
        Condition("step size", path.step_size, below=largest_smooth_step(path.tasks.H.value)),
        Condition("gamma", _gamma(path), below=1.0),
        _steepness(path),
    ]


def _steepness(path: Path) -> Condition:
    """Whether B is what it is said to be, along this path: it may be estimated, or the steps too long for a proof."""
    return Condition("Lipschitz constant", path.tasks.B.value, at_least=max(path.norms))


def _correlation(path: Path) -> Condition:
    old, new = float(path.tasks.g_old.norm()), float(path.tasks.g_new.norm())
    return Condition("positive correlation", path.tasks.cosine, at_least=smallest_eps2(_gamma(path), old, new))
