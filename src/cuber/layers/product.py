"""The product of a batch with a weight whose gradient comes out projected.

A weight's gradient is ``delta' X``, so ``G (I - U U') = delta' (X - (X U) U')``: with fewer inputs in the batch than
the layer has outputs, projecting the inputs is the shorter way to the same gradient.

With a scaling, ``W~ x = W x + (W L) S U' x``. What is read of the weight, ``W L``, does not move but along its free
columns, so the way through the inputs' own space, ``W (x + L S U' x)``, can be spared.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from cuber.core.device import full_precision
from cuber.subspace import Projector, Reading, Scaling


class HeldScaling(NamedTuple):
    """A scaling of a weight that is held, and how far the weight has come."""

    scaling: Scaling
    reading: Reading
    moved: Tensor


class ProjectedProduct:
    """``x -> [W | b] x`` with a projector, and what is known of the gradients that it has given."""

    def __init__(self, projector: Projector, free: Tensor | None = None, covered: Tensor | None = None) -> None:
        self.projector = projector
        self.free = free
        """Columns along which the gradient is asked for too."""
        self._covered = None if covered is None else covered.nonzero().flatten()
        """Which columns of the scaling are the protected ones, if all of these are among them; the rest are free."""
        self._uncovered = None if covered is None else (~covered).nonzero().flatten()
        self._given: tuple[bool, Tensor | None] = False, None

    def __call__(
        self, vectors: Tensor, weight: Tensor, bias: Tensor | None, scaled: HeldScaling | None = None
    ) -> Tensor:
        """The product; the vectors end in the 1 that the bias is the weight of, if there is one."""
        matrix = None if scaled is None else scaled.scaling.matrix
        y = _Product.apply(vectors.flatten(0, -2), weight, bias, matrix, scaled, self)
        return y if vectors.dim() == 2 else y.unflatten(0, vectors.shape[:-1])

    def weight(self, weight: Tensor, scaled: HeldScaling) -> Tensor:
        """``W~`` of a weight as a matrix, for layers that are more than a product."""
        return _ScaledWeight.apply(weight, scaled.scaling.matrix, scaled, self)

    def outside(self, rows: Tensor, seen: Tensor | None) -> Tensor:
        """The rows, projected; ``seen`` is what they are along the columns of the scaling."""
        if seen is None or self._covered is None or not self.projector.asks:
            return self.projector(rows)
        every = seen.shape[1] == len(self._covered)
        return self.projector.knowing(rows, seen if every else seen.index_select(1, self._covered))

    def along(self, seen: Tensor) -> Tensor | None:
        """What of it is along the free columns, if that can be told."""
        return None if self._uncovered is None or self.free is None else seen.index_select(1, self._uncovered)

    def give(self, along: Tensor | None) -> None:
        """A gradient has been given; so it is along the free columns, if that is known."""
        self._given = True, along

    def take(self) -> tuple[bool, Tensor | None]:
        """Whether a gradient has been given since this was last asked, and what the last is along the free columns."""
        given, self._given = self._given, (False, None)
        return given


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        matrix: Tensor | None,
        scaled: HeldScaling | None,
        product: ProjectedProduct,
    ) -> Tensor:
        y = multiplied(vectors, weight, bias)
        applied = seen = turned = moved = None
        if scaled is not None:
            scaling, reading, moved = scaled
            applied = scaling.applied if scaling.shares else scaling.matrix
            seen = vectors @ scaling.basis
            along = seen @ applied.mT
            y = torch.addmm(y, along, reading.anchored.mT)
            if reading.turns:
                turned, moved = reading.back(along), moved.to(along)
                y = torch.addmm(y, turned, moved.mT)
        ctx.product, ctx.scaled = product, scaled
        ctx.save_for_backward(vectors, weight, bias, matrix, applied, seen, turned, moved)
        return y

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        vectors, weight, bias, matrix, applied, seen, turned, moved = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates twice, and we hold constant what is not
            return *_long_way(ctx.scaled, delta, vectors, weight, bias, matrix), None, None
        with full_precision(weight.device):
            # An autocast may have made halves of them; what protects old tasks is computed in full.
            delta, vectors = delta.to(weight.dtype), vectors.to(weight.dtype)
            of_vectors = _against(delta, weight, bias) if ctx.needs_input_grad[0] else None
            of_matrix = None
            if ctx.scaled is not None:
                scaling, reading, _ = ctx.scaled
                back = delta @ reading.anchored
                if reading.turns:
                    back = reading.plus(back, delta @ moved.to(weight.dtype))
                    vectors = torch.addmm(vectors, turned.to(weight.dtype), reading.free.mT)
                of_matrix = (back.mT @ seen.to(weight.dtype)).mul_(scaling.root)
                if of_vectors is not None:
                    of_vectors = torch.addmm(of_vectors, back @ applied, scaling.basis.mT)
            of_weight = of_bias = None
            if ctx.needs_input_grad[1]:
                product: ProjectedProduct = ctx.product
                if seen is not None and seen.dtype != weight.dtype:
                    seen = None  # half of what is known is not good enough
                rows, inside = delta.mT, product.outside(vectors, seen)
                of_weight = rows @ (inside if bias is None else inside[:, :-1])
                of_bias = None if bias is None else rows @ inside[:, -1]
                along = None if seen is None else product.along(seen)
                if along is not None and turned is not None:
                    along = along + turned.to(along)
                elif product.free is not None:
                    along = inside @ product.free.to(inside)
                product.give(None if along is None else rows @ along)
        return of_vectors, of_weight, of_bias, of_matrix, None, None


class _ScaledWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, matrix: Tensor, scaled: HeldScaling, product: ProjectedProduct) -> Tensor:
        scaling, reading, moved = scaled
        with full_precision(weight.device):
            applied, read = scaling.applied if scaling.shares else scaling.matrix, reading.after(moved)
            ctx.product, ctx.scaled = product, scaled
            ctx.save_for_backward(weight, matrix, applied, read)
            return torch.addmm(weight, read @ applied, scaling.basis.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, matrix, applied, read = ctx.saved_tensors
        product: ProjectedProduct = ctx.product
        scaling, reading, _ = ctx.scaled
        if torch.is_grad_enabled():
            scaled = scaling.weight(weight, matrix)
            return *torch.autograd.grad(scaled, [weight, matrix], gradient, create_graph=True), None, None
        with full_precision(gradient.device):
            seen = gradient @ scaling.basis
            of_matrix = (read.mT @ seen).mul_(scaling.root)
            of_weight = None
            if ctx.needs_input_grad[0]:
                along = product.along(seen)
                if reading.turns:
                    of_moved = seen @ reading.times(applied).mT
                    gradient = torch.addmm(gradient, of_moved, reading.free.mT)
                    along = None if along is None else along + of_moved
                of_weight = product.outside(gradient, seen)
                product.give(along)
        return of_weight, of_matrix, None, None


def _long_way(scaled: HeldScaling | None, delta: Tensor, *inputs: Tensor | None) -> list[Tensor | None]:
    """The gradients of vectors, weight, bias and M as they are, not projected, for autograd to follow."""
    vectors, weight, bias, matrix = inputs
    assert vectors is not None
    assert weight is not None
    y = multiplied(vectors if scaled is None else scaled.scaling.input(vectors, matrix), weight, bias)
    asked = [one is not None and one.requires_grad for one in inputs]
    wanted = [one for one, asks in zip(inputs, asked, strict=True) if one is not None and asks]
    found = iter(torch.autograd.grad(y, wanted, delta, create_graph=True))
    return [next(found) if asks else None for asks in asked]


def multiplied(vectors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[W | b] x`` for vectors that end in what the bias is the weight of, if there is one."""
    if bias is None:
        return functional.linear(vectors, weight)
    return functional.linear(vectors[..., :-1], weight) + vectors[..., -1:] * bias


def _against(delta: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    of_vectors = delta @ weight
    return of_vectors if bias is None else torch.cat([of_vectors, (delta * bias).sum(-1, keepdim=True)], dim=-1)
