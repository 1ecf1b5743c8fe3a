"""The product of a batch with a weight whose gradient comes out projected.

A weight's gradient is ``delta' X``, so ``G (I - U U') = delta' (X - (X U) U')``: with fewer inputs in the batch than
the layer has outputs, projecting the inputs is the shorter way to the same gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuber.device import full_precision
from cuber.subspace import Projector


class ProjectedProduct:
    """``x -> [W | b] x`` with a projector, and what is known of the gradients that it has given."""

    def __init__(self, projector: Projector) -> None:
        self.projector = projector
        self._given: list[tuple[int, int]] = []
        self._kept: list[Any] = []

    def __call__(self, vectors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product; the vectors end in the 1 that the bias is the weight of, if there is one."""
        return _Product.apply(vectors, weight, bias, self)

    def give(self, gradients: list[Tensor]) -> None:
        """Remember these gradients; their memory is kept, so that nothing else can come to lie there."""
        self._kept = [gradient.untyped_storage() for gradient in gradients]
        self._given = list(map(mark, gradients))

    def take(self) -> list[tuple[int, int]]:
        """The marks of the gradients given last, which are then forgotten."""
        given, self._given, self._kept = self._given, [], []
        return given

    def __getstate__(self) -> dict[str, Any]:
        return {"projector": self.projector, "_given": [], "_kept": []}


def mark(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor lies, and how often it has been changed there."""
    return tensor.data_ptr(), tensor._version


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, weight: Tensor, bias: Tensor | None, product: ProjectedProduct) -> Tensor:
        ctx.save_for_backward(vectors, weight, bias)
        ctx.product = product
        if bias is None:
            return vectors @ weight.mT
        return vectors[..., :-1] @ weight.mT + vectors[..., -1:] * bias

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        vectors, weight, bias = ctx.saved_tensors
        with full_precision(weight.device):
            # An autocast may have made halves of them; what protects old tasks is computed in full.
            delta, vectors = delta.to(weight.dtype), vectors.to(weight.dtype)
            of_vectors = delta @ weight if ctx.needs_input_grad[0] else None
            if of_vectors is not None and bias is not None:
                of_vectors = torch.cat([of_vectors, (delta * bias).sum(-1, keepdim=True)], dim=-1)
            rows, inside = delta.flatten(0, -2).mT, ctx.product.projector(vectors.flatten(0, -2))
            gradients = [rows @ inside] if bias is None else [rows @ inside[:, :-1], rows @ inside[:, -1]]
        ctx.product.give(gradients)
        return of_vectors, gradients[0], gradients[1] if bias is not None else None, None
