"""How much of what a model trains is protected, and what ``print(learner)`` says of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuber.core.formatting import pluralize
from cuber.core.settings import settings_of
from cuber.errors import CuberWarning
from cuber.networks.heads import head_parameters

if TYPE_CHECKING:
    from cuber.core.learner import Method

FATES = {
    "freeze": "frozen after the first task",
    "train": "trained without protection",
    "error": "not protected",
}
"""Value of ``uncovered`` -> what becomes of parameters that are neither protected nor kept per task."""
NAMED = 3
"""Number of names in a line."""


@dataclass(frozen=True)
class Coverage:
    """Trained parameters of a model by what becomes of them, as numbers of entries, and what is not trained."""

    protected: int
    per_task: int
    unprotected: dict[str, int]
    """Name -> entries."""
    heads: int
    frozen_by_user: tuple[str, ...]
    """Names of the layers."""
    fate: str = FATES["freeze"]
    """Of what is not protected."""
    frozen: int = 0
    """Entries that no task trains, because the learner has frozen them."""

    @classmethod
    def of(cls, learner: Method) -> Coverage | None:
        """Return the coverage of a learner's model; None if the learner protects nothing."""
        reasons = learner.unprotected_parameters()
        if reasons is None:
            return None
        heads, frozen = set(head_parameters(learner.model)), set(learner.freezer.names())
        own = learner.normalization.per_task.union(learner.per_task_parameters())
        counts = dict.fromkeys(("protected", "per_task", "heads"), 0)
        unprotected: dict[str, int] = {}
        by_user: dict[str, None] = {}
        for name, parameter in learner.model.named_parameters():
            if not parameter.requires_grad and name not in frozen:
                by_user[name.rpartition(".")[0] or name] = None
            elif name in reasons:
                unprotected[name] = parameter.numel()
            else:
                kind = "heads" if parameter in heads else "per_task" if name in own else "protected"
                counts[kind] += parameter.numel()
        fate = FATES[getattr(learner, "uncovered", "freeze")]
        return cls(**counts, unprotected=unprotected, frozen_by_user=tuple(by_user), fate=fate)

    @property
    def trained(self) -> int:
        """Number of trained entries outside of heads."""
        return self.protected + self.per_task + sum(self.unprotected.values())

    def share(self, entries: int) -> str:
        """Return a part of what is trained as text.

        >>> Coverage(protected=3, per_task=1, unprotected={}, heads=0, frozen_by_user=()).share(3)
        '75.0 %'
        """
        return f"{100 * entries / max(self.trained, 1):.1f} %"

    def lines(self) -> list[str]:
        """Return the first lines of ``print(learner)``."""
        parts = [f"{self.share(self.protected)} of {self.trained:,} trained parameters in protected layers"]
        if not self.trained and self.frozen:
            parts = ["nothing is trained before the first task"]
        if self.per_task:
            parts.append(f"{self.share(self.per_task)} per task")
        if self.unprotected:
            parts.append(f"{self.share(sum(self.unprotected.values()))} {self.fate}")
        lines = [", ".join(parts)]
        if self.heads:
            lines.append(f"heads: {self.heads:,} parameters, not counted above")
        if self.frozen:
            lines.append(f"frozen by the learner: {self.frozen:,} parameters, not counted above")
        if self.frozen_by_user:
            lines.append(f"frozen by you: {pluralize(len(self.frozen_by_user), 'layer')} ({few(self.frozen_by_user)})")
        return lines


def few(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are.

    >>> few(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    names = list(names)
    more = f" and {len(names) - NAMED} more" if names[NAMED:] else ""
    return ", ".join(names[:NAMED]) + more


def describe(learner: Method) -> str:
    """Return what ``print(learner)`` prints."""
    values = ", ".join(f"{name}={getattr(learner, name)!r}" for name in settings_of(learner))
    state = f"{learner.tasks} tasks learned" if learner.task is None else f"learning task {learner.task}"
    coverage = learner.coverage()
    lines = [*(coverage.lines() if coverage else []), *learner.describe()]
    return "\n  ".join([f"{type(learner).__name__}({values}): {state}", *lines])


def warn_of_frozen(learner: Method) -> None:
    """Warn where more than half of what the first task trains will be frozen after it."""
    coverage, reasons = learner.coverage(), learner.unprotected_parameters()
    if coverage is None or not reasons or coverage.fate != FATES["freeze"]:
        return
    frozen = sum(coverage.unprotected.values())
    if frozen <= coverage.trained / 2:
        return
    largest = sorted(coverage.unprotected, key=lambda name: -coverage.unprotected[name])[:NAMED]
    named = "; ".join(f"'{name}' of {coverage.unprotected[name]:,} ({reasons[name]})" for name in largest)
    warnings.warn(
        f"{coverage.share(frozen)} of {coverage.trained:,} trained parameters will be frozen after the first task, "
        f"because no layer rule covers them; the largest: {named}. Add a rule for their layers (see cuber.layers), "
        "freeze them yourself from the start, or choose uncovered='train' to train them without protection",
        CuberWarning,
        stacklevel=5,
    )
