"""Definitions 1 and 2, and the setting of the theorems: two tasks, and two update rules for learning the second.

The definitions return the largest epsilon for which they hold, computed as the CUBER learner computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cuber.errors import CuberError
from cuber.subspace import Pool, Projector, PrunedGradient
from cuber.theory.losses import Constant, Loss

Rule = Callable[[Tensor, Tensor], Tensor]
"""From the gradient of the new task and a basis of the old task's subspace to the update direction."""


def sufficient_projection(gradient: Tensor, basis: Tensor) -> float:
    """Definition 1: return ``||proj_S(g)|| / ||g||``, where S is spanned by an orthonormal basis, ``d x rank``.

    >>> round(sufficient_projection(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0], [0.0]])), 6)
    0.6
    """
    if basis.dim() != 2 or gradient.shape[-1:] != basis.shape[:1]:
        raise CuberError(f"the gradient is {_shape(gradient)} and the basis {_shape(basis)}: give out x d and d x rank")
    everything = torch.ones(1, basis.shape[1], dtype=torch.bool, device=basis.device)
    return Pool(basis, everything).projection_ratios(torch.atleast_2d(gradient))[0]


def positive_correlation(g_old: Tensor | PrunedGradient, g_new: Tensor) -> float:
    """Definition 2: return the cosine between the last gradient of the old task and the first of the new one.

    >>> round(positive_correlation(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0])), 6)
    0.6
    """
    if isinstance(g_old, PrunedGradient):
        return g_old.cosine(g_new)
    if g_old.shape != g_new.shape:
        raise CuberError(f"the old gradient is {_shape(g_old)} and the new one {_shape(g_new)}: they must be alike")
    return PrunedGradient.of(g_old, keep=1).cosine(g_new)


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"


def rule_1(gradient: Tensor, basis: Tensor) -> Tensor:
    """Return ``g2 - proj_S(g2)``: the weight does not change in the old task's subspace."""
    return Projector(basis).outside(gradient)


def rule_2(gradient: Tensor, basis: Tensor) -> Tensor:
    """Return ``g2``: plain gradient descent on the new task."""
    return gradient


@dataclass(frozen=True, eq=False)
class TwoTasks:
    """The losses of an old and a new task.

    ``start`` is the weight w0 at which the old task ended, ``out x d``; ``basis`` an orthonormal basis of the old
    task's input subspace, ``d x rank``; ``lowest`` a lower bound of the joint loss.
    """

    old: Loss
    new: Loss
    start: Tensor
    basis: Tensor
    lowest: float = 0.0

    def __post_init__(self) -> None:
        if self.start.dim() != 2 or self.basis.dim() != 2 or self.basis.shape[0] != self.start.shape[1]:
            raise CuberError(
                f"the weights are {_shape(self.start)} and the basis {_shape(self.basis)}: "
                "give out x d and d x rank, the same d"
            )
        if self.new.lipschitz is None and not self.new.convex:
            raise CuberError("the new loss is not convex, so its Lipschitz constant must be given: see estimated()")

    def joint(self, weight: Tensor) -> float:
        """Return F, the sum of both losses."""
        return self.old(weight) + self.new(weight)

    @cached_property
    def g_old(self) -> Tensor:
        """Gradient g1(w0) of the old task."""
        return self.old.gradient(self.start)

    @cached_property
    def g_new(self) -> Tensor:
        """Gradient g2(w0) of the new task."""
        return self.new.gradient(self.start)

    @property
    def norms(self) -> tuple[float, float]:
        """``||g1(w0)||`` and ``||g2(w0)||``."""
        return float(self.g_old.norm()), float(self.g_new.norm())

    @cached_property
    def ratio(self) -> float:
        """Definition 1 at w0."""
        return sufficient_projection(self.g_new, self.basis)

    @cached_property
    def cosine(self) -> float:
        """Definition 2 at w0."""
        return positive_correlation(self.g_old, self.g_new)

    @property
    def H(self) -> Constant:  # noqa: N802
        """The paper's H: twice the larger smoothness constant of the two losses."""
        constants = self.old.smoothness, self.new.smoothness
        return Constant(2 * max(c.value for c in constants), all(c.exact for c in constants))

    @cached_property
    def B(self) -> Constant:  # noqa: N802
        """Bound on the gradient norm of the new task along the path of either rule.

        For a convex loss it is the norm of the first gradient: gradient descent with steps up to 1 / H never increases
        the norm of the gradient, nor, under rule 1, the norm of the component that is used.
        """
        if self.new.convex or self.new.lipschitz is None:
            return Constant(self.norms[1], exact=True)
        return self.new.lipschitz


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Result of :func:`follow`: weights w_0 to w_K, and gradients of the new task at w_0 to w_{K-1}."""

    tasks: TwoTasks
    step_size: float
    weights: list[Tensor]
    gradients: list[Tensor]

    @property
    def steps(self) -> int:
        return len(self.gradients)

    @cached_property
    def norms(self) -> list[float]:
        """Norms ``||g2(w_k)||``."""
        return [float(gradient.norm()) for gradient in self.gradients]

    @cached_property
    def cosines(self) -> list[float]:
        """Cosines between g1(w_0) and g2(w_k): definition 2 at each step, as the learner checks it in regime 3."""
        return [positive_correlation(self.tasks.g_old, gradient) for gradient in self.gradients]

    @cached_property
    def joint_losses(self) -> list[float]:
        return [self.tasks.joint(weight) for weight in self.weights]

    @cached_property
    def old_losses(self) -> list[float]:
        return [self.tasks.old(weight) for weight in self.weights]


def follow(rule: Rule, tasks: TwoTasks, step_size: float, steps: int) -> Trajectory:
    """Learn the new task with a rule for ``steps`` steps."""
    if not step_size > 0 or steps < 1:
        raise CuberError(f"a path takes a step size above 0 and 1 step or more, not {step_size:g} and {steps}")
    weights, gradients = [tasks.start], []
    for _ in range(steps):
        gradients.append(tasks.new.gradient(weights[-1]))
        weights.append(weights[-1] - step_size * rule(gradients[-1], tasks.basis))
    return Trajectory(tasks, step_size, weights, gradients)
