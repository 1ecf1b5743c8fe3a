"""Directions for low-rank updates of a weight, and how large an update may grow."""

from __future__ import annotations

import math
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

    Args:
        sensitivity: task -> relative change of its outputs by an update of norm 1, at most.
        spent: task -> relative change by all later tasks so far, at most.
    """

    sensitivity: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)

    def add_task(self, outside: float, outputs: float) -> None:
        """Add the next task, with the energy of its inputs outside the pool and the energy of its outputs."""
        self.sensitivity.append(math.sqrt(outside / outputs) if outputs > 0 else 0.0)
        self.spent.append(0.0)

    def largest_norm(self, tolerance: float) -> float:
        """Return the largest norm of the next update: half of what is left, so that every later task has some left."""
        known = zip(self.sensitivity, self.spent, strict=True)
        return min(
            (max(0.0, tolerance - spent) / (2 * each) for each, spent in known if each > 0),
            default=math.inf,
        )

    def spend(self, norm: float) -> None:
        """Count an update of this norm."""
        self.spent = [spent + norm * each for each, spent in zip(self.sensitivity, self.spent, strict=True)]
