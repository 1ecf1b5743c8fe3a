"""Directions for low-rank updates of a weight, and how large an update may grow."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cuber.subspace.gram import Gram
from cuber.subspace.precision import in_float64


def free_directions(gram: Gram, taken: Tensor, count: int) -> Tensor:
    """Return at most ``count`` orthonormal directions outside ``taken``: the leading ones of the inputs, then others.

    Fewer only where fewer are left. Those that the inputs do not determine are random, and the same in every process.

    Args:
        gram: of input vectors.
        taken: d x K, orthonormal columns.
        count: number of directions.

    Returns:
        d x k, in float64.
    """
    count = min(count, gram.dimension - taken.shape[1])
    residual = gram.residual(taken)
    found = residual.directions(min(count, len(residual.energies))).double()
    missing = count - found.shape[1]
    known = torch.cat([taken.to(found), found], dim=1)
    generator = torch.Generator().manual_seed(known.shape[1])
    other = torch.randn(gram.dimension, missing, dtype=torch.float64, generator=generator).to(found)
    for _ in range(2):  # twice is enough (Kahan and Parlett)
        other = torch.linalg.qr(other - known @ (known.mT @ other)).Q
    return torch.cat([found, other], dim=1)


def directions_within(gram: Gram, basis: Tensor, count: int) -> Tensor:
    """Return at most ``count`` orthonormal directions in the span of ``basis``: the leading ones of the inputs there.

    Args:
        gram: of input vectors.
        basis: d x K, orthonormal columns.
        count: number of directions.

    Returns:
        d x k, in float64.
    """
    within = gram.within(basis)
    _, combinations = torch.linalg.eigh((within + within.mT) / 2)
    return basis.to(combinations) @ combinations.flip(1)[:, :count]


def energy_outside(gram: Gram, basis: Tensor) -> float:
    """Return the energy of the inputs outside ``basis``, exact to rounding of float64."""
    exact = torch.linalg.qr(in_float64(basis)).Q  # a basis in float32 is orthonormal to 1e-7 only
    return max(0.0, gram.energy - float(gram.along(exact).sum()))


def output_energy(gram: Gram, basis: Tensor, weight: Tensor) -> float:
    """Return the energy of ``W x`` over the inputs x, for the part of x inside ``basis``."""
    within = gram.within(basis)
    along = weight.to(within) @ basis.to(within)
    return float((along @ within * along).sum())


@dataclass
class ChangeBudget:
    """How much later tasks may change the outputs of a layer for the inputs of old tasks.

    An update of norm n that is orthogonal to a basis changes outputs only by what inputs have outside the basis: at
    most n times the root of their energy there. Changes are relative: root of the energy of the change over root of
    the energy of the outputs ``W x``, both over all inputs of an old task.

    An update has a part outside the pool, and may have one in subspaces of old tasks in regime 3. What the second part
    does to those tasks is not bounded here.

    Args:
        sensitivity: task -> relative change of its outputs by an update of norm 1 outside the pool, at most.
        exposure: task -> relative change of its outputs by an update of norm 1 outside its own subspace, at most.
        spent: task -> relative change by all later tasks so far, at most.
    """

    sensitivity: list[float] = field(default_factory=list)
    exposure: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)

    @classmethod
    def of_unreached(cls, tasks: int) -> ChangeBudget:
        """Return the budget of a layer that ``tasks`` earlier tasks did not use."""
        return cls([0.0] * tasks, [0.0] * tasks, [0.0] * tasks)

    def add_task(self, outside_pool: float, outside_own: float, outputs: float) -> None:
        """Add the next task, with the energy of its inputs outside the pool, outside its subspace, and of outputs."""
        self.sensitivity.append(math.sqrt(outside_pool / outputs) if outputs > 0 else 0.0)
        self.exposure.append(math.sqrt(outside_own / outputs) if outputs > 0 else 0.0)
        self.spent.append(0.0)

    def largest_norms(self, tolerance: float, improving: Collection[int] = ()) -> tuple[float, float]:
        """Return the largest norms of both parts of the next update.

        Together they may use half of what is left, so that every later task has some left.

        Args:
            tolerance: the largest relative change.
            improving: tasks in regime 3, in whose subspaces the second part is; none: there is only the first.
        """
        outside, along = [math.inf], [math.inf]
        for task, spent in enumerate(self.spent):
            shared = bool(improving) and task not in improving  # by both parts
            left = max(0.0, tolerance - spent) / (4 if shared else 2)
            if self.sensitivity[task] > 0:
                outside.append(left / self.sensitivity[task])
            if shared and self.exposure[task] > 0:
                along.append(left / self.exposure[task])
        return min(outside), min(along)

    def spend(self, outside: float, along: float = 0.0, improving: Collection[int] = ()) -> None:
        """Count an update with parts of these norms."""
        for task in range(len(self.spent)):
            self.spent[task] += outside * self.sensitivity[task]
            if task not in improving:
                self.spent[task] += along * self.exposure[task]
