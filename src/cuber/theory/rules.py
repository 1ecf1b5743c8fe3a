"""Two tasks, and the two rules by which the second is learnt after the first: theorem 1's and theorem 2's scene."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from cuber.errors import CuberError
from cuber.subspace import Projector
from cuber.theory.definitions import positive_correlation, shape, sufficient_projection
from cuber.theory.losses import Constant, Loss

Rule = Callable[[Tensor, Tensor], Tensor]
"""From the new task's gradient and a basis of the old task's subspace to the direction that is walked against."""


def rule_1(gradient: Tensor, basis: Tensor) -> Tensor:
    """``g2 - proj_S(g2)``: the weights do not move in the old task's subspace."""
    return Projector(basis).outside(gradient)


def rule_2(gradient: Tensor, basis: Tensor) -> Tensor:
    """``g2``: plain gradient descent on the new task."""
    return gradient


@dataclass(frozen=True, eq=False)
class TwoTasks:
    """An old task that has been learnt, up to ``start``, and a new one; ``basis`` spans what the old one sees."""

    old: Loss
    new: Loss
    start: Tensor
    basis: Tensor
    lowest: float = 0.0
    """What the joint loss never falls below."""

    def __post_init__(self) -> None:
        if self.start.dim() != 2 or self.basis.dim() != 2 or self.basis.shape[0] != self.start.shape[1]:
            raise CuberError(
                f"the weights are {shape(self.start)} and the basis {shape(self.basis)}: "
                "give out x d and d x rank, the same d"
            )
        if self.new.lipschitz is None and not self.new.convex:
            raise CuberError("the new loss is not convex, so its Lipschitz constant must be given: see estimated()")

    def joint(self, weight: Tensor) -> float:
        """F, the sum of both losses."""
        return self.old(weight) + self.new(weight)

    @cached_property
    def g_old(self) -> Tensor:
        """g1(w0), the gradient that the old task ended with."""
        return self.old.gradient(self.start)

    @cached_property
    def g_new(self) -> Tensor:
        """g2(w0), the new task's first."""
        return self.new.gradient(self.start)

    @cached_property
    def ratio(self) -> float:
        """Definition 1 at the start."""
        return sufficient_projection(self.g_new, self.basis)

    @cached_property
    def cosine(self) -> float:
        """Definition 2 at the start."""
        return positive_correlation(self.g_old, self.g_new)

    @property
    def H(self) -> Constant:  # noqa: N802
        """Twice the smoothness of the less smooth loss, the old one's included: what the paper writes as H."""
        constants = self.old.smoothness, self.new.smoothness
        return Constant(2 * max(c.value for c in constants), all(c.exact for c in constants))

    @cached_property
    def B(self) -> Constant:  # noqa: N802
        """A bound on the new task's gradient along either rule's path, which is all that the proofs use of Lipschitz.

        Gradient descent on a convex loss with steps up to 1 / H never raises the norm of the gradient, nor that of
        its part outside a subspace where only that part is walked along: the first gradient is the steepest.
        """
        if self.new.convex:
            return Constant(float(self.g_new.norm()), exact=True)
        assert self.new.lipschitz is not None, "checked at the door"
        return self.new.lipschitz


@dataclass(frozen=True, eq=False)
class Path:
    """Where a rule leads in some steps: ``weights`` w_0 to w_K, ``gradients`` of the new task at all but the last."""

    tasks: TwoTasks
    step_size: float
    weights: list[Tensor]
    gradients: list[Tensor]

    @property
    def steps(self) -> int:
        return len(self.gradients)

    @cached_property
    def norms(self) -> list[float]:
        """``||g2(w_k)||``."""
        return [float(gradient.norm()) for gradient in self.gradients]

    @cached_property
    def cosines(self) -> list[float]:
        """Between g1(w_0) and g2(w_k): definition 2 along the path, as regime 3 keeps checking it."""
        return [positive_correlation(self.tasks.g_old, gradient) for gradient in self.gradients]

    @cached_property
    def joint_losses(self) -> list[float]:
        return [self.tasks.joint(weight) for weight in self.weights]

    @cached_property
    def old_losses(self) -> list[float]:
        return [self.tasks.old(weight) for weight in self.weights]


def follow(rule: Rule, tasks: TwoTasks, step_size: float, steps: int) -> Path:
    """Learn the new task for some steps."""
    if not step_size > 0 or steps < 1:
        raise CuberError(f"a path takes a step size above 0 and 1 step or more, not {step_size:g} and {steps}")
    weights, gradients = [tasks.start], []
    for _ in range(steps):
        gradients.append(tasks.new.gradient(weights[-1]))
        weights.append(weights[-1] - step_size * rule(gradients[-1], tasks.basis))
    return Path(tasks, step_size, weights, gradients)
