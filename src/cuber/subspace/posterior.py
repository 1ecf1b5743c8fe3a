"""Which of several tasks a vector belongs to: posterior probabilities, and vectors that belong to none."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cuber.subspace.density import Density
from cuber.subspace.precision import in_float64

FOLDS = 5
"""Parts of a task's vectors; the density of each is computed from the others, so that it has not seen it."""
POWERS = torch.logspace(0, -4, 41, dtype=torch.float64)
"""What log densities may be multiplied by. Real inputs are not normally distributed, and their coordinates depend on
each other more than a density knows, so densities alone would be far too certain."""

ROUNDING = 1e-6
"""Relative error of scores, which are kept in float32: vectors that are all equal have one score."""


@dataclass
class TaskDensities:
    """The densities of all tasks, and what calibrates them. Of the vectors themselves none is kept.

    Args:
        layer: the layer whose inputs they describe; empty before the first task.
        densities: task -> density; None where the task has none.
        scores: task -> log densities of its own vectors, ascending, each from a density that has not seen the vector.
        losses: task -> mean Brier score of its own vectors among all tasks so far, for each of ``POWERS``: the squared
            distance between probabilities and truth. It is bounded, so that no single odd vector decides.
    """

    layer: str = ""
    densities: list[Density | None] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def add_task(self, task: int, vectors: Tensor | None) -> None:
        """Add the next task, by vectors of its own, n x d; what was added as a later task is dropped.

        Args:
            task: its number.
            vectors: None where it has none.
        """
        for kept in (self.densities, self.scores, self.losses):
            del kept[task:]
        missing = task - len(self.densities) + (vectors is None or not len(vectors))  # such as tasks kept without
        self.densities += [None] * missing
        self.scores += [torch.zeros(0) for _ in range(missing)]
        self.losses += [torch.zeros(len(POWERS)) for _ in range(missing)]
        if vectors is None or not len(vectors):
            return
        unseen = held_out_scores(vectors)
        logs = torch.cat([self.log_densities(vectors), unseen.unsqueeze(1)], dim=1)
        truth = torch.eye(logs.shape[1], dtype=logs.dtype, device=logs.device)[-1]
        found = torch.stack([(power * logs).softmax(1) for power in POWERS.to(logs.device)])
        self.densities.append(Density.fit(vectors))
        self.scores.append(unseen.sort().values.to(vectors.device, torch.float32))
        self.losses.append((found - truth).square().sum(2).mean(1).to(vectors.device, torch.float32))

    @property
    def power(self) -> float:
        """What log densities are multiplied by: the largest of those with the smallest loss over all tasks."""
        if not self.losses:
            return 1.0
        return float(POWERS[int(torch.stack([losses.cpu() for losses in self.losses]).sum(0).argmin())])

    def fits(self, dimension: int) -> bool:
        """Return whether any task has a density of vectors of this length."""
        return any(density is not None and density.dimension == dimension for density in self.densities)

    def log_densities(self, vectors: Tensor) -> Tensor:
        """Return the log density of each vector in each task, n x tasks, in float64.

        It is minus infinity for tasks without a density, or with one of vectors of another length.
        """
        logs = in_float64(vectors[:, :1]).new_full((len(vectors), len(self.densities)), -math.inf)
        for task, density in enumerate(self.densities):
            if density is not None and density.dimension == vectors.shape[1]:
                logs[:, task] = density.log_density(vectors)
        return logs

    def probabilities(self, logs: Tensor) -> Tensor:
        """Return the posterior probability of each task, n x tasks, for tasks that are equally likely before.

        Args:
            logs: what ``log_densities`` returned.
        """
        return (self.power * logs).softmax(1)

    def accepted(self, logs: Tensor, false_alarms: float) -> Tensor:
        """Return whether a vector may belong to each task, n x tasks: its log density is usual there.

        It is not if too low, or too high, as that of a blank image can be. Of a task's own vectors about the share
        ``false_alarms`` is not accepted at most, whatever their distribution (split conformal prediction, where the
        rate is exact, with cross-fitting in place of the split). A task with fewer than ``1 / false_alarms - 1``
        vectors accepts all.

        Args:
            logs: what ``log_densities`` returned.
            false_alarms: from 0 to 1; 0: all are accepted.
        """
        accepted = torch.zeros_like(logs, dtype=torch.bool)
        for task, scores in enumerate(self.scores):
            outside = math.floor(false_alarms * (len(scores) + 1))  # ranks on both sides that are not accepted
            above = outside // 2
            low = float(scores[outside - above - 1]) if outside else -math.inf
            high = float(scores[-above]) if above else math.inf
            own = logs[:, task]
            not_below, not_above = own >= low - ROUNDING * abs(low), own <= high + ROUNDING * abs(high)
            accepted[:, task] = not_below & not_above & own.isfinite()
        return accepted


def held_out_scores(vectors: Tensor) -> Tensor:
    """Return the log density of each vector by a density of the others, in parts; n."""
    folds = min(FOLDS, len(vectors))
    if folds == 1:
        return Density.fit(vectors).log_density(vectors)
    scores = in_float64(vectors[:, 0]).clone()
    for fold in range(folds):
        others = torch.cat([vectors[part::folds] for part in range(folds) if part != fold])
        scores[fold::folds] = Density.fit(others).log_density(vectors[fold::folds])
    return scores
