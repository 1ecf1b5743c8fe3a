"""Gradients of single samples from the inputs and output gradients of layers: one backward pass for a whole batch.

The gradient of a sample for the matrix of a layer is the sum, over its input vectors, of the outer product of output
gradient and input vector. Samples must not interact in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from cuber.layers.protected import ProtectedLayer

BYTES = 64 * 2**20
"""Memory for gradients of single samples at a time, roughly."""


@dataclass
class Use:
    """One call of a layer with a batch: its input, and the gradient of the summed loss with respect to its output."""

    layer: ProtectedLayer
    module: nn.Module
    input: Tensor
    gradient: Tensor
    samples: int

    def is_clear(self) -> bool:
        """Return whether it is known which rows belong to which sample."""
        split = not self.input.is_nested and self.input.dim() > 0 and len(self.input) % self.samples == 0
        return split and self.layer.rule.outputs(self.module, self.gradient) is not None

    def rows(self, which: slice | None = None) -> tuple[Tensor, Tensor]:
        """Return output gradients and input vectors of samples: samples x parts x groups x positions x (outputs, d)."""
        x, gradient, samples = self.input, self.gradient, self.samples
        if which is not None:
            x, gradient = (t.unflatten(0, (samples, -1))[which].flatten(0, 1) for t in (x, gradient))
            samples = len(range(samples)[which])
        working = torch.promote_types(self.layer.parameter.dtype, torch.float32)
        vectors = self.layer.vectors(self.module, x).to(working)
        outputs = cast(Tensor, self.layer.rule.outputs(self.module, gradient)).to(working)
        shape = samples, len(x) // samples, self.layer.outputs // outputs.shape[1], -1
        return outputs.reshape(*shape, outputs.shape[1]), vectors.reshape(*shape, vectors.shape[1])


def uses_of(layers: Iterable[ProtectedLayer], loss: Callable[[], Tensor], samples: int) -> dict[str, list[Use]]:
    """Return layer name -> its uses; ``loss()`` computes the mean loss of a batch of ``samples`` samples."""
    calls: list[tuple[ProtectedLayer, nn.Module, Tensor]] = []
    edges: list[GradientEdge] = []

    def record(
        layer: ProtectedLayer, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> None:
        if output.requires_grad:
            module, x = layer.rule.bind(module, *arguments, **named)
            calls.append((layer, module, x.detach()))
            edges.append(get_gradient_edge(output))  # an activation may overwrite the output itself

    with ExitStack() as hooks:
        for layer in layers:
            for module in layer.modules:
                hooks.enter_context(module.register_forward_hook(partial(record, layer), with_kwargs=True))
        total = loss() * samples
    uses: dict[str, list[Use]] = {}
    if calls and total.requires_grad:
        gradients = torch.autograd.grad(total, edges, allow_unused=True)
        for (layer, module, x), gradient in zip(calls, gradients, strict=True):
            if gradient is not None:
                uses.setdefault(layer.name, []).append(Use(layer, module, x, gradient, samples))
    return uses


def sample_gradients(uses: list[Use], which: slice) -> Tensor:
    """Return the gradients of some samples for the matrix of a layer, samples x out x d."""
    return sum(torch.einsum("nkgpo,nkgpd->ngod", *use.rows(which)).flatten(1, 2) for use in uses)  # type: ignore[return-value]


def sum_of_squares(uses: list[Use]) -> Tensor:
    """Return the squared gradients for the matrix of a layer, summed over all samples: out x d."""
    samples, layer = uses[0].samples, uses[0].layer
    most_vectors = max(use.gradient.numel() for use in uses) // (samples * layer.outputs)
    if len(uses) == most_vectors == 1:
        # One input vector: the gradient of a sample is an outer product, and its square that of the squares.
        gradients, vectors = (rows.flatten(1, 3).transpose(0, 1).square() for rows in uses[0].rows())
        return (gradients.mT @ vectors).flatten(0, 1)
    bytes_per_sample = layer.dimension * (layer.outputs + most_vectors) * layer.parameter.element_size()
    chunk = max(1, BYTES // bytes_per_sample)
    parts = (slice(start, start + chunk) for start in range(0, samples, chunk))
    return sum(sample_gradients(uses, part).square().sum(0) for part in parts)  # type: ignore[return-value]
