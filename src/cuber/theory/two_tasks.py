"""Definitions 1 and 2, and the setting of the theorems: two tasks, and two update rules for learning the second.

The definitions return the largest epsilon for which they hold, computed as the CUBER learner computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(eq=False)
class TwoTasks:
    """The losses of an old and a new task.

    Args:
        start: The weight w0 at which the old task ended, ``out x d``.
        basis: An orthonormal basis of the old task's input subspace, ``d x rank``.
        lowest: A lower bound of the joint loss.

    Attributes are ``g_old`` and ``g_new``, the gradients g1 and g2 at w0; their ``norms``; ``ratio`` and ``cosine``,
    definitions 1 and 2 at w0; the paper's ``H``; and ``B``, a bound on the norms of g2 along the path of either rule.
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
        self.g_old, self.g_new = self.old.gradient(self.start), self.new.gradient(self.start)
        self.norms = float(self.g_old.norm()), float(self.g_new.norm())
        self.ratio = sufficient_projection(self.g_new, self.basis)
        self.cosine = positive_correlation(self.g_old, self.g_new)
        smoothness = self.old.smoothness, self.new.smoothness
        self.H = Constant(2 * max(one.value for one in smoothness), all(one.exact for one in smoothness))
        # Gradient descent on a convex loss with steps up to 1 / H never increases the norm of the gradient, nor, under
        # rule 1, the norm of the component that is used.
        bound = Constant(self.norms[1], exact=True) if self.new.convex else self.new.lipschitz
        if bound is None:
            raise CuberError("the new loss is not convex, so its Lipschitz constant must be given: see estimated()")
        self.B = bound

    def joint(self, weight: Tensor) -> float:
        """Return F, the sum of both losses."""
        return self.old(weight) + self.new(weight)


@dataclass(eq=False)
class Trajectory:
    """Result of :func:`follow`: weights w_0 to w_K, and gradients of the new task at w_0 to w_{K-1}.

    Attributes are the number of ``steps``; the ``norms`` of the gradients; their ``cosines`` with g1(w_0), which are
    definition 2 at each step, as the learner checks it in regime 3; and the losses at each weight.
    """

    tasks: TwoTasks
    step_size: float
    weights: list[Tensor]
    gradients: list[Tensor]

    def __post_init__(self) -> None:
        self.steps = len(self.gradients)
        self.norms = [float(gradient.norm()) for gradient in self.gradients]
        self.cosines = [positive_correlation(self.tasks.g_old, gradient) for gradient in self.gradients]
        self.joint_losses = [self.tasks.joint(weight) for weight in self.weights]
        self.old_losses = [self.tasks.old(weight) for weight in self.weights]


def follow(rule: Rule, tasks: TwoTasks, step_size: float, steps: int) -> Trajectory:
    """Learn the new task with a rule for ``steps`` steps."""
    if not step_size > 0 or steps < 1:
        raise CuberError(f"a path takes a step size above 0 and 1 step or more, not {step_size:g} and {steps}")
    weights, gradients = [tasks.start], []
    for _ in range(steps):
        gradients.append(tasks.new.gradient(weights[-1]))
        weights.append(weights[-1] - step_size * rule(gradients[-1], tasks.basis))
    return Trajectory(tasks, step_size, weights, gradients)
