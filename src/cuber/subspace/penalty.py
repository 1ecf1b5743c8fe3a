"""What holds a weight back while it may move in an old task's subspace."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cuber.subspace.gram import Gram

Penalty = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Its value for a weight change in the coordinates of a basis, and its gradient there."""


def norm_penalty(inside: Tensor) -> tuple[Tensor, Tensor]:
    """``||D B||_F`` for the weight change D, given as ``D B``: a pull of constant size.

    The norm has no gradient at 0, where 0 is taken: nothing has moved, nothing pulls.
    """
    norm = inside.norm()
    return norm, inside / norm.clamp_min(torch.finfo(norm.dtype).tiny)


def squared_penalty(inside: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``tr(C Q C')`` with ``C = D B``; Q is 1 or the weights of ``energy_weights``."""
    weighted = inside if weights is None else inside @ weights
    return (inside * weighted).sum(), 2 * weighted


class Restraint:
    """The penalties of several old tasks on the change of one weight, which look at the change together.

    The change comes in the coordinates of some columns. Each task has its own among them; only along the ``movable``
    ones is the weight pulled.
    """

    def __init__(self, tasks: list[tuple[Tensor, Penalty]], movable: Tensor) -> None:
        self.tasks = [(columns.nonzero().flatten(), penalty) for columns, penalty in tasks]
        self.movable = movable

    def __call__(self, moved: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the penalties for a weight change, and its gradient, both in coordinates, out x f."""
        value, pull = moved.new_zeros(()), torch.zeros_like(moved)
        for columns, penalty in self.tasks:
            of_task, towards = penalty(moved.index_select(1, columns))
            value = value + of_task
            pull.index_add_(1, columns, towards)
        return value, pull * self.movable.to(pull)


def energy_weights(gram: Gram, basis: Tensor) -> Tensor:
    """How much the task's answers change with its weights, direction by direction: ``B' M B``, the largest 1.

    ``tr(D M D')`` is the summed squared change of what the layer answers to the inputs that M was made of.
    """
    energy = gram.within(basis)
    largest = torch.linalg.eigvalsh(energy)[-1:].clamp_min(torch.finfo(energy.dtype).tiny)
    return (energy / largest).to(basis)
