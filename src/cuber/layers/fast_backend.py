"""The same results as the plain back end with less work.

1. The gradient of a linear layer is ``delta' X``. What the projection removes is ``delta' (X U) U'``: with fewer input
   vectors than outputs, it is shorter to project the inputs than the gradient.
2. ``W~ x = W x + (W U) S (U' x)``, where ``W U`` is known: no product has the size of the weight.
3. After a step of plain SGD, the displacement along the free columns has changed by ``-lr`` times the gradient there.

What relies on the past (1 and 3) is checked by a product with one random vector before it is used.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional

from cuber.layers.backend import PlainBackend
from cuber.subspace import Scaling

if TYPE_CHECKING:
    from cuber.layers.protected import ProtectedLayer

WORTHWHILE = 500_000
"""Multiplications that projecting the inputs instead of the gradient must save."""
TOLERANCE = 1e-4
"""Relative difference between a cached displacement and what a check finds."""
FACTOR_TOLERANCE = 1e-5
"""Relative difference between a gradient and its factors: rounding is below 2e-6. What passes is not projected."""
ROUNDING = 20
"""Multiples of the rounding error by which a weight may be off between two ends of epochs."""


class Factors(NamedTuple):
    """A gradient ``delta' rows``: the output's gradient (m x out) and the input vectors (m x d)."""

    delta: Tensor
    rows: Tensor


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
        columns = 0 if constraint is None else constraint.projector.columns + len(constraint.movable)
        self._saved_per_row = columns * self.layer.dimension
        """Multiplications that projecting inputs saves, for each input vector fewer than the layer has outputs."""
        self._is_large = self._saved_per_row * self.layer.outputs > WORTHWHILE and self.layer.rule.multiplies
        self.on_scaling_changed()

    def on_scaling_changed(self) -> None:
        scaling, constraint = self.layer.scaling, self.layer.constraint
        self._read: Tensor | None = None
        """What the scaling multiplies of the anchored weight, without the free columns, out x q."""
        self._moving: tuple[Tensor, Tensor] | None = None
        """The free columns, d x f, and what the scaling multiplies along them, f x q."""
        if scaling is None or constraint is None or not scaling.matrix.requires_grad:
            return
        with torch.autocast(scaling.basis.device.type, enabled=False):  # tasks are also shown inside an autocast
            self._read = scaling.read(constraint.anchor.start.to(scaling.basis))
            if len(constraint.free_columns):
                left = torch.eye(scaling.basis.shape[1]).to(scaling.basis) if scaling.left is None else scaling.left
                left = left[constraint.free_columns]
                self._read = self._read - constraint.free_start.to(left) @ left
                self._moving = constraint.free.to(left), left

    # Forward

    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        layer, scaling = self.layer, self.layer.scaling
        if scaling is None and not self._is_large:
            return type(module).forward(module, x)
        few = layer.rule.multiplies and not x.is_nested and x.dim() > 1 and x.shape[:-1].numel() <= layer.outputs
        if not few:
            return PlainBackend.forward(self, module, x)
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        y, seen, ones = (self._linear(rows), rows, None) if scaling is None else self._scaled(module, rows, scaling)
        if self._records(module, rows, y):
            y.register_hook(partial(self._record, seen.detach(), None if ones is None else ones.detach()))
        return y if x.dim() == 2 else y.unflatten(0, x.shape[:-1])

    def _linear(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self.layer.parameter, self.layer.bias)

    def _scaled(self, module: nn.Module, rows: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return ``W~ x``, and the input vectors that W itself is multiplied with, their last entry apart."""
        layer, with_bias = self.layer, self.layer.with_bias
        basis = scaling.basis
        inside = torch.addmm(basis[-1], rows, basis[:-1]) if with_bias else rows @ basis
        scaled = inside @ scaling.applied.mT
        read = self._read if self.reads_anchor(module) else None
        if read is not None and self._moving is None:
            return torch.addmm(self._linear(rows), scaled, read.mT), rows, None
        # Without an anchor, the whole weight is read where it is now.
        columns, left = self._moving if read is not None and self._moving is not None else (basis, scaling.left)
        moved = scaled if left is None else scaled @ left.mT
        seen = torch.addmm(rows, moved, columns[: rows.shape[1]].mT)
        ones = 1 + moved @ columns[-1] if with_bias else None
        y = functional.linear(seen, layer.parameter, layer.bias if ones is None else None)
        if ones is not None:
            y = torch.addcmul(y, ones.unsqueeze(1), layer.bias)  # type: ignore[arg-type]
        return (y if read is None else torch.addmm(y, scaled, read.mT)), seen, ones

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
        layer, constraint = self.layer, self.layer.require_constraint()
        factors, scale = self._matching_factors()
        self._factors, self._recorded, self._gradient_along = [], 0, None
        if factors is None:
            if constraint.projector.rank and not layer.change_gradient_(constraint.projector.project_):
                layer.set_gradient(constraint.projector.outside(layer.gradient()))
            return
        delta, rows = factors
        if constraint.projector.rank:
            layer.add_product_to_gradient(delta.mT, constraint.projector.inside(rows), -scale)
        if constraint.penalty is not None:
            free = constraint.free
            self._gradient_along = (delta.mT @ (rows @ free.to(rows))).to(free).mul_(scale * constraint.movable)

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
        probe = self.layer.require_constraint().probe.to(factors.rows)
        found = self.layer.times(self.layer.gradients(), probe)
        expected = factors.delta.mT.mv(factors.rows.mv(probe))
        both = torch.stack([found, expected]).double()
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
        constraint = self.layer.require_constraint()
        moved = self.layer.times(self.layer.parameters, constraint.free_direction) - constraint.free_direction_start
        moved = moved.to(displacement)
        error = torch.addmv(moved, displacement, constraint.free_probe, alpha=-1)
        squared_error, squared_size = torch.stack([error.dot(error), moved.dot(moved)]).tolist()
        allowed: float = TOLERANCE * squared_size**0.5 + constraint.free_rounding
        return bool(squared_error <= allowed**2)

    @torch.no_grad()
    def add_to_gradient(self, along: Tensor, scale: float) -> None:
        if self._gradient_along is not None:
            self._gradient_along.add_(along, alpha=scale)
        self.layer.add_product_to_gradient(along, self.layer.require_constraint().free.mT, scale)

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
        projector, expected = self.layer.require_constraint().projector, self.layer.require_constraint().held_direction
        found = self.layer.times(self.layer.parameters, projector.direction)
        return bool((found - expected).norm() > ROUNDING * torch.finfo(found.dtype).eps * expected.norm())
