"""The diagonal of the Fisher information: how much the outputs for some samples depend on each weight.

It is the mean over samples of the squared gradient of each sample's own loss, whatever the batches. The squared
gradient of a batch's mean loss would be smaller the larger the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from cuber.core import batches, distributed
from cuber.core.batches import Batch
from cuber.errors import CuberWarning
from cuber.layers import (
    ProtectedLayer,
    Use,
    constant_statistics,
    evaluation_mode,
    normalized_by_batch,
    sample_gradients,
    scan,
    sum_of_squares,
    uses_of,
)
from cuber.layers.per_sample import BYTES
from cuber.networks.heads import head_parameters
from cuber.subspace import in_float64

Loss = Callable[[Batch], Tensor]

TRIED = 8, 2
"""Size of the batch that layers are tried with, and number of its samples that are compared."""
TOGETHER = 2**20
"""Bytes up to which small batches are joined."""


def fisher_diagonal(
    model: nn.Module, loss: Loss, samples: list[Batch], without: Iterable[nn.Parameter] = ()
) -> dict[str, Tensor]:
    """Return parameter name -> Fisher diagonal, for all that is trained but heads.

    Layers that a rule covers need only their inputs and output gradients. Other parameters (of normalization layers,
    embeddings, attention) get their gradients from ``torch.func``, many samples at a time. Layers that normalize each
    batch by itself take its mean and variance as constants, so that samples do not interact.

    Args:
        model: any module; it is put into evaluation mode.
        loss: ``loss(batch)`` is a mean loss.
        samples: over which it is a mean, and over those of all other processes.
        without: parameters to leave out, besides heads.
    """
    with evaluation_mode(model), torch.enable_grad():
        fisher = _Fisher(model, loss, {*head_parameters(model), *without})
        if not fisher.names:
            return {}
        fisher.try_layers(batches.first(max(samples, key=batches.size), TRIED[0]))
        # Small batches are joined, but not where each is normalized by itself.
        for batch in samples if fisher.normalized else batches.joined(samples, TOGETHER):
            fisher.add(batch)
    (count,) = distributed.sum_numbers(sum(map(batches.size, samples)))
    sums = distributed.sum_tensors([fisher.sums[parameter] for parameter in fisher.names])
    return {name: total / count for name, total in zip(fisher.names.values(), sums, strict=True)}


class _Fisher:
    """Sums of squared gradients, and the way in which each parameter gets its gradients."""

    def __init__(self, model: nn.Module, loss: Loss, without: set[nn.Parameter]) -> None:
        self.model, self.loss = model, loss
        found = scan(model, exempt=without).layers.values()
        self.layers = [layer for layer in found if layer.rule.whole and not layer.is_parametrized]
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad and p not in without}
        self.sums = {p: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in self.names}
        self.others = list(self.names)
        """Parameters whose gradients no layer gives."""
        self.uses_func = True
        self.normalized = normalized_by_batch(model)

    def try_layers(self, batch: Batch) -> None:
        """Keep the layers that give the same gradients as single samples, tried on the samples with the largest ones.

        Not kept are layers whose weights are used without calling them, or whose inputs do not begin with a dimension
        for samples; and none at all if the loss of a batch is not the mean of its samples' losses.
        """
        uses = self._uses(batch)
        strength = torch.zeros(batches.size(batch), dtype=torch.float64)
        for use in (use for of_layer in uses.values() for use in of_layer if use.is_clear()):
            strength += in_float64(use.gradient.reshape(len(strength), -1)).norm(dim=1).cpu()
        for sample in strength.argsort(descending=True)[: TRIED[1]].tolist():
            with self._samples_apart(batch):
                alone = self._gradients(batch, sample, list(self.names))
            self.layers = [layer for layer in self.layers if _agrees(layer, uses.get(layer.name, []), sample, alone)]
        covered = {parameter for layer in self.layers for parameter in layer.parameters}
        self.others = [parameter for parameter in self.names if parameter not in covered]

    def add(self, batch: Batch) -> None:
        """Add the squared gradients of all samples in a batch."""
        for uses in self._uses(batch).values():
            layer = uses[0].layer
            for parameter, square in zip(layer.parameters, layer.split(sum_of_squares(uses)), strict=True):
                self.sums[parameter] += square
        if self.others and self.uses_func:
            try:
                for parameter, square in self._squares_by_func(batch).items():
                    self.sums[parameter] += square
            except Exception as error:  # whatever torch.func cannot do with a user's model
                self.uses_func = False
                reason = " ".join(str(error.__cause__ or error).split())[:200]
                warnings.warn(
                    f"{len(self.others)} parameters, first '{self.names[self.others[0]]}', get their gradients one "
                    f"sample at a time, which is slow: torch.func cannot take this model ({reason})",
                    CuberWarning,
                    stacklevel=5,
                )
        if self.others and not self.uses_func:
            with self._samples_apart(batch):
                for sample in range(batches.size(batch)):
                    for parameter, gradient in self._gradients(batch, sample, self.others).items():
                        self.sums[parameter] += gradient.square()

    def _samples_apart(self, batch: Batch) -> AbstractContextManager[None]:
        return constant_statistics(self.normalized, lambda: self.loss(batch))

    def _uses(self, batch: Batch) -> dict[str, list[Use]]:
        with self._samples_apart(batch):
            return uses_of(self.layers, lambda: self.loss(batch), batches.size(batch))

    def _gradients(self, batch: Batch, sample: int, parameters: list[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
        """Return the gradients of one sample's own loss."""
        loss = self.loss(batches.part(batch, slice(sample, sample + 1)))
        if not loss.requires_grad:
            return {}
        gradients = zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True)
        return {p: gradient.to_dense().to(self.sums[p].dtype) for p, gradient in gradients if gradient is not None}

    def _squares_by_func(self, batch: Batch) -> dict[nn.Parameter, Tensor]:
        """Return sums of squared gradients by ``torch.func``, for as many samples at a time as there is memory for."""
        module = nn.ModuleDict({"model": self.model})  # the loss as a module that holds the model
        module.forward = lambda sample: self.loss(sample).sum()
        weights = {f"model.{self.names[parameter]}": parameter.detach() for parameter in self.others}

        def own_loss(weights: dict[str, Tensor], tensors: list[Tensor]) -> Tensor:
            rest = iter(tensors)
            sample = batches.map_samples(batch, lambda _: next(rest).unsqueeze(0))
            return functional_call(module, weights, (sample,))

        tensors: list[Tensor] = []
        batches.map_samples(batch, tensors.append)
        chunk = max(1, BYTES // (sum(parameter.nbytes for parameter in self.others) or 1))
        squares = {parameter: torch.zeros_like(self.sums[parameter]) for parameter in self.others}
        # Attention as plain products: vmap would run torch's fused kernels one sample at a time.
        with torch.no_grad(), self._samples_apart(batch), sdpa_kernel(SDPBackend.MATH):
            for part in zip(*(tensor.split(chunk) for tensor in tensors), strict=True):
                gradients = vmap(grad(own_loss), in_dims=(None, 0))(weights, list(part))
                for parameter, gradient in zip(self.others, gradients.values(), strict=True):
                    squares[parameter] += gradient.to(squares[parameter].dtype).square().sum(0)
        return squares


def _agrees(layer: ProtectedLayer, uses: list[Use], sample: int, alone: dict[nn.Parameter, Tensor]) -> bool:
    """Return whether a layer's uses in a batch give the gradient that a sample has alone."""
    if not all(use.is_clear() for use in uses):
        return False
    expected = layer.join([alone.get(p, torch.zeros_like(p)) for p in layer.parameters])
    found = sample_gradients(uses, slice(sample, sample + 1))[0] if uses else torch.zeros_like(expected)
    tolerance = torch.finfo(layer.parameter.dtype).eps ** 0.5
    return bool((found - expected).norm() <= tolerance * expected.norm())
