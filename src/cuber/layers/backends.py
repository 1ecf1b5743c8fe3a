"""How a protected layer computes: by the formulas as they are written, and faster with the same results.

``W`` is the layer's weight as a matrix, ``[W | b]`` where there is a bias. The columns of ``B`` are the basis vectors
of all old tasks, those of ``U`` the ones that are protected. :class:`PlainBackend` has every formula as the description
of the method writes it. :class:`FastBackend`, the default, does less work:

1. The gradient of a linear layer is ``delta' X``. What the projection removes is ``delta' (X U) U'``: with fewer input
   vectors than outputs, it is shorter to project the inputs than the gradient.
2. ``W~ x = W x + (W B) S (B' x)``, where ``W B`` is known: no product has the size of the weight.
3. After a step of plain SGD, the displacement along the free columns has changed by ``-lr`` times the gradient there.

What relies on the past (1 and 3) is checked by a product with one random vector before it is used.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional

from cuber.subspace import Constraint, Scaling, full_precision, in_float64

if TYPE_CHECKING:
    from cuber.layers.protected import ProtectedLayer

WORTHWHILE = 500_000
"""Multiplications that projecting the inputs instead of the gradient must save."""
TOLERANCE = 1e-4
"""Relative difference between a cached displacement and what a check finds."""
FACTOR_TOLERANCE = 1e-5
"""Relative difference between a gradient and its factors: rounding is below 2e-6. An error of this size would stay."""
ROUNDING = 20
"""Multiples of the rounding error by which a weight may be off between two ends of epochs."""


class PlainBackend:
    """The formulas of one layer, without shortcuts."""

    cached_displacement: Tensor | None = None
    """What a back end has to save with the state of a task."""

    records = True
    """Whether gradients are made here, and not the mean over several processes; set before the constraint."""

    def __init__(self, layer: ProtectedLayer) -> None:
        self.layer = layer

    def on_constraint_changed(self) -> None:
        """The layer has another constraint."""

    def on_scaling_changed(self) -> None:
        """The layer has another scaling."""

    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        """Apply the layer with its effective weight ``W~ = W + (W B) S B'``."""
        layer = self.layer
        if layer.scaling is None:
            return layer.rule.forward(module, x)
        return layer.rule.apply(module, x, *layer.effective(module))

    def effective_weight(self, module: nn.Module) -> Tensor:
        """Return ``W~``. While the task trains, its scalings read ``W B`` as a constant along protected columns."""
        layer, weight = self.layer, self.layer.join(self.layer.tensors)
        assert layer.scaling is not None
        if self.reads_anchor(module):
            return layer.scaling.weight(weight, layer.require_constraint().along(weight).to(weight))
        return layer.scaling.weight(weight, weight @ layer.scaling.basis)

    def reads_anchor(self, module: nn.Module) -> bool:
        """Return whether the scaling is the one being trained, in a training step."""
        scaling, constraint = self.layer.scaling, self.layer.constraint
        if scaling is None or constraint is None or not constraint.anchored or not self.layer.is_constrained:
            return False
        return module.training and scaling.matrix.requires_grad

    def project_gradient(self) -> None:
        """Remove the protected directions from the gradient: ``G - (G U) U'``."""
        constraint = self.layer.require_constraint()
        if constraint.projector.rank:
            gradient = self.layer.gradient()
            self.layer.set_gradient(gradient - constraint.inside(gradient))

    def displacement(self) -> Tensor:
        """Return ``(W - w') F``: how far the weight has moved along the free columns since the task began."""
        return self.layer.require_constraint().displacement(self.layer.matrix().detach())

    def add_to_gradient(self, along: Tensor, scale: float) -> None:
        """Add ``scale * along F'`` to the gradient, for ``along`` (out x f) in coordinates of the free columns."""
        free = self.layer.require_constraint().free
        self.layer.add_to_gradient(scale * (along @ free.mT.to(along)))

    def after_step(self, lr: float | None) -> None:
        """The weight has changed: by ``-lr`` times its gradient, or in another way (None)."""

    @torch.no_grad()
    def restore_protected(self) -> None:
        """Move the weight back to where it is held along the protected columns."""
        layer = self.layer
        layer.set_matrix(layer.require_constraint().restored(layer.matrix()))

    def has_drifted(self) -> bool:
        """Return whether a step may have moved the weight along a protected direction."""
        return True


class Factors(NamedTuple):
    """A gradient ``delta' rows``: the output's gradient (m x out) and the input vectors (m x d)."""

    delta: Tensor
    rows: Tensor


class Probes:
    """Random unit vectors: what a product should be is checked along one of them, at the cost of one product."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint

    @cached_property
    def anywhere(self) -> Tensor:
        """A direction of inputs."""
        basis = self._constraint.basis
        return _random_unit(basis.new_empty(len(basis)))

    @cached_property
    def protected(self) -> tuple[Tensor, Tensor]:
        """A protected direction of inputs, and what the weight should be along it."""
        held = self._constraint.held
        protected = self._constraint.protected.to(held)  # of a model that was made wider, the weight is wider
        combination = self.anywhere.to(held) @ protected
        combination = combination / combination.norm().clamp_min(1e-30)
        return protected @ combination, held.mv(combination)

    @cached_property
    def free(self) -> tuple[Tensor, Tensor, Tensor, float]:
        """A combination of the free columns, the direction that it is, and what the weight was along it, with error."""
        constraint = self._constraint
        combination = _random_unit(constraint.free_start[0])
        start = constraint.free_start.mv(combination)
        rounding = 100 * torch.finfo(start.dtype).eps * float(start.norm())
        return combination, constraint.free.to(start) @ combination, start, rounding


def _random_unit(like: Tensor) -> Tensor:
    drawn = torch.randn(len(like), generator=torch.Generator().manual_seed(0)).to(like)
    return drawn / drawn.norm()


class FastBackend(PlainBackend):
    """The formulas of one layer, with shortcuts."""

    def __init__(self, layer: ProtectedLayer) -> None:
        super().__init__(layer)
        self.on_constraint_changed()

    def on_constraint_changed(self) -> None:
        self._factors: list[Factors] = []
        """Of the gradients that backward passes have added since the last step."""
        self._recorded = 0
        """Rows in these; more than outputs: too many to be of use, and dropped."""
        self.cached_displacement = None
        """As of the last step; checked before it is used."""
        self._gradient_along: Tensor | None = None
        """The present gradient along the free columns, if it is known."""
        constraint = self.layer.constraint
        if constraint is not None:
            self._probes = Probes(constraint)
        columns = 0 if constraint is None else constraint.projector.columns + len(constraint.movable)
        self._saved_per_row = columns * self.layer.dimension
        """Multiplications that projecting inputs saves, for each input vector fewer than the layer has outputs."""
        worthwhile = self._saved_per_row * self.layer.outputs > WORTHWHILE
        self._is_large = worthwhile and self.records and self.layer.rule.multiplies
        self.on_scaling_changed()

    def on_scaling_changed(self) -> None:
        scaling, constraint = self.layer.scaling, self.layer.constraint
        self._read: Tensor | None = None
        """What the scaling multiplies of the anchored weight, out x q; times ``_still``, of the part that stays."""
        self._still: Tensor | None = None
        """0 for the free columns and 1 for the others, q; None: ``_read`` has no free columns."""
        self._moving: Tensor | None = None
        """What the scaling multiplies along the free columns, f x q; None: it multiplies these columns themselves."""
        if scaling is None or constraint is None or not scaling.matrix.requires_grad:
            return
        with full_precision(scaling.basis.device):  # tasks are also shown inside an autocast
            self._read = scaling.read(constraint.anchor.start.to(scaling.basis))
            if not len(constraint.free_columns):
                return
            if scaling.left is None:
                free = constraint.free_columns.to(self._read.device)
                self._still = self._read.new_ones(self._read.shape[1]).index_fill(0, free, 0)
            else:
                self._moving = scaling.left[constraint.free_columns.to(scaling.left.device)]
                self._read = self._read - constraint.free_start.to(self._moving) @ self._moving

    # Forward

    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        layer, scaling = self.layer, self.layer.scaling
        if scaling is None and not self._is_large:
            return layer.rule.forward(module, x)
        few = layer.rule.multiplies and not x.is_nested and x.dim() > 1 and x.shape[:-1].numel() <= layer.outputs
        if not few:
            return PlainBackend.forward(self, module, x)
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        y, seen, ones = (self._linear(rows), rows, None) if scaling is None else self._scaled(module, rows, scaling)
        if self._records(module, rows, y):
            y.register_hook(partial(self._record, seen.detach(), None if ones is None else ones.detach()))
        return y if x.dim() == 2 else y.unflatten(0, x.shape[:-1])

    def _linear(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self._weight(), self.layer.bias)

    def _weight(self) -> Tensor:
        return self.layer.rule.matrix(self.layer.modules[0], self.layer.parameter)

    def _scaled(self, module: nn.Module, rows: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return ``W~ x``, and the input vectors that W itself is multiplied with, their last entry apart."""
        layer, with_bias = self.layer, self.layer.with_bias
        basis = scaling.basis
        inside = torch.addmm(basis[-1], rows, basis[:-1]) if with_bias else rows @ basis
        scaled = inside @ scaling.applied.mT
        if self.reads_anchor(module) and self._read is not None:
            still = scaled if self._still is None else scaled * self._still
            constant = partial(torch.addmm, mat1=still, mat2=self._read.mT)
            constraint = layer.require_constraint()
            if not len(constraint.free_columns):
                return constant(self._linear(rows)), rows, None
            columns = constraint.free.to(basis)
            if self._moving is None:
                moved = scaled.index_select(1, constraint.free_columns.to(scaled.device))
            else:
                moved = scaled @ self._moving.mT
        else:  # the whole weight is read where it is now
            constant, columns = None, basis
            moved = scaled if scaling.left is None else scaled @ scaling.left.mT
        seen = torch.addmm(rows, moved, columns[: rows.shape[1]].mT)
        ones = 1 + moved @ columns[-1] if with_bias else None
        y = functional.linear(seen, self._weight(), layer.bias if ones is None else None)
        if ones is not None:
            y = torch.addcmul(y, ones.unsqueeze(1), layer.bias)  # type: ignore[arg-type]
        return (y if constant is None else constant(y)), seen, ones

    def _records(self, module: nn.Module, rows: Tensor, y: Tensor) -> bool:
        """Return whether projecting these inputs saves more work than it makes, and can be done."""
        if not self._is_large or not module.training or not y.requires_grad or torch.compiler.is_compiling():
            return False
        return self._saved_per_row * (self.layer.outputs - len(rows)) > WORTHWHILE and not is_functorch_wrapped_tensor(
            y
        )

    def _record(self, rows: Tensor, ones: Tensor | None, delta: Tensor) -> None:
        """Keep the factors of a gradient; a hook of the layer's output."""
        self._recorded += len(rows)
        if self._recorded > self.layer.outputs:
            self._factors.clear()
        else:
            if self.layer.with_bias:
                last = rows.new_ones(len(rows)) if ones is None else ones
                rows = torch.cat([rows, last.unsqueeze(1)], dim=1)
            self._factors.append(Factors(delta.detach(), rows))

    # The step

    @torch.no_grad()
    def project_gradient(self) -> None:
        constraint = self.layer.require_constraint()
        factors, scale = self._matching_factors()
        self._factors, self._recorded, self._gradient_along = [], 0, None
        if factors is None:
            if constraint.projector.rank:
                self._project_whole(constraint)
            return
        delta, rows = factors
        if constraint.projector.rank:
            self._add_product_to_gradient(delta.mT, constraint.projector.inside(rows), -scale)
        if constraint.penalty is not None:
            along = (delta.mT @ (rows @ constraint.free.to(rows))).to(constraint.free_start)
            self._gradient_along = along.mul_(scale * constraint.movable)

    def _project_whole(self, constraint: Constraint) -> None:
        """Project the gradient itself, in place where it lies in memory as a matrix."""
        layer, (gradient, *bias) = self.layer, self.layer.gradients()
        matrix = layer.rule.matrix(layer.modules[0], gradient)
        if bias or matrix.data_ptr() != gradient.data_ptr():
            layer.set_gradient(constraint.projector.outside(layer.gradient()))
        else:
            constraint.projector.project_(matrix)

    def _matching_factors(self) -> tuple[Factors | None, float]:
        """Return the recorded factors and the number by which to multiply them, if the gradient is their product.

        It is not where the gradient was changed by more than a factor, as by clipping values, or made elsewhere.
        """
        if not self._factors or self.layer.parameter.element_size() < 4:
            return None, 0.0
        several = len(self._factors) > 1
        factors = Factors(*map(torch.cat, zip(*self._factors, strict=True))) if several else self._factors[0]
        if factors.delta.dtype != self.layer.parameter.dtype or factors.rows.dtype != self.layer.parameter.dtype:
            return None, 0.0  # computed in half precision, and not exact enough
        probe = self._probes.anywhere.to(factors.rows)
        found = self._times(self.layer.gradients(), probe)
        expected = factors.delta.mT.mv(factors.rows.mv(probe))
        both = in_float64(torch.stack([found, expected]))
        (size, product), (_, expected_size) = (both @ both.mT).tolist()
        if not size * expected_size > 0:
            return None, 0.0
        error = size - product**2 / expected_size
        return (factors, product / expected_size) if error <= FACTOR_TOLERANCE**2 * size else (None, 0.0)

    def displacement(self) -> Tensor:
        constraint = self.layer.require_constraint()
        if self.cached_displacement is None or not self._agrees(self.cached_displacement):
            self.cached_displacement = constraint.displacement(self.layer.matrix().detach())
        return self.cached_displacement

    def _agrees(self, displacement: Tensor) -> bool:
        combination, direction, start, rounding = self._probes.free
        moved = (self._times(self.layer.parameters, direction) - start).to(displacement)
        error = torch.addmv(moved, displacement, combination, alpha=-1)
        squared_error, squared_size = torch.stack([error.dot(error), moved.dot(moved)]).tolist()
        allowed: float = TOLERANCE * squared_size**0.5 + rounding
        return bool(squared_error <= allowed**2)

    @torch.no_grad()
    def add_to_gradient(self, along: Tensor, scale: float) -> None:
        if self._gradient_along is not None:
            self._gradient_along.add_(along, alpha=scale)
        self._add_product_to_gradient(along, self.layer.require_constraint().free.mT, scale)

    def after_step(self, lr: float | None) -> None:
        known = lr is not None and self._gradient_along is not None and self.cached_displacement is not None
        if known:
            self.cached_displacement = torch.add(self.cached_displacement, self._gradient_along, alpha=-lr)  # type: ignore[arg-type, operator]
        else:
            self.cached_displacement = None
        self._gradient_along = None

    @torch.no_grad()
    def restore_protected(self) -> None:
        self.cached_displacement = None
        PlainBackend.restore_protected(self)

    def has_drifted(self) -> bool:
        """Judge by one random protected direction. Momentum stays outside; Adam's steps and decay do not."""
        if self.layer.parameter.element_size() < 4:  # half precision is not exact enough to tell
            return True
        direction, expected = self._probes.protected
        found = self._times(self.layer.parameters, direction)
        return bool((found - expected).norm() > ROUNDING * torch.finfo(found.dtype).eps * expected.norm())

    # Products with the layer's tensors, without joining weight and bias

    def _times(self, tensors: list[Tensor] | list[nn.Parameter], vector: Tensor) -> Tensor:
        """Return ``layer.join(tensors) @ vector``."""
        weight = self.layer.rule.matrix(self.layer.modules[0], tensors[0].detach())
        vector = vector if vector.dtype == weight.dtype else vector.to(weight)
        if not self.layer.with_bias:
            return weight.mv(vector)
        return weight.mv(vector[:-1]).add_(tensors[1].detach() * vector[-1])

    def _add_product_to_gradient(self, left: Tensor, right: Tensor, scale: float) -> None:
        """Add ``scale * left @ right`` to the gradient, without a matrix as large as it where that is possible."""
        layer, (weight, *bias) = self.layer, self.layer.gradients()
        matrix, inputs = layer.rule.matrix(layer.modules[0], weight), right[:, : layer.dimension - layer.with_bias]
        if matrix.data_ptr() == weight.data_ptr() and matrix.dtype == left.dtype == right.dtype:
            matrix.addmm_(left, inputs, alpha=scale)
        else:
            weight += scale * layer.rule.weight(layer.modules[0], (left @ inputs.to(left)).to(weight), weight)
        for gradient in bias:
            gradient += scale * (left @ right[:, -1].to(left))
