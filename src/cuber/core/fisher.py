"""The diagonal of the Fisher information: how much each weight matters for the answers to some samples.

It is the mean over the samples of the squared gradient of each sample's own loss, so it knows nothing of batches. The
squared gradient of a batch's mean loss is another thing, and smaller the larger the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from cuber.core import batches
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

Loss = Callable[[Batch], Tensor]
Squares = dict[nn.Parameter, Tensor]

TRIED = 8, 2
"""A batch of so many samples is tried first, and so many of them alone, to see whether both say the same."""

TOGETHER = 2**20
"""Batches are joined up to so many bytes."""


def fisher_diagonal(model: nn.Module, loss: Loss, samples: list[Batch]) -> dict[str, Tensor]:
    """Of all trained parameters but heads, by name, in evaluation mode; ``loss(batch)`` is the model's mean loss.

    Layers that a rule covers need no more than their inputs and output gradients. What else there is (the weights of
    normalization layers, embeddings, attention) gets its gradients from ``torch.func``, many samples at once.
    Layers that normalize each batch by itself take its mean and variance as constants, so that samples do not interact.
    """
    with evaluation_mode(model), torch.enable_grad():
        fisher = _Fisher(model, loss)
        if not fisher.names:
            return {}
        fisher.try_layers(batches.first(max(samples, key=batches.size), TRIED[0]))
        # Small samples are faster many at a time; the mean and variance of a batch are those of the batches given.
        for batch in samples if fisher.normalized else batches.joined(samples, TOGETHER):
            fisher.add(batch)
    count = sum(map(batches.size, samples))
    return {name: fisher.sums[parameter] / count for parameter, name in fisher.names.items()}


class _Fisher:
    """The squared gradients summed so far, and which parameter gets them in which way."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self.loss = model, loss
        heads = set(head_parameters(model))
        self.layers = list(scan(model, exempt=heads).layers.values())
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad and p not in heads}
        self.sums = {p: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in self.names}
        self.others = list(self.names)
        """The parameters for which no layer tells the gradients."""
        self.at_once = True
        self.normalized = normalized_by_batch(model)

    def try_layers(self, batch: Batch) -> None:
        """Keep the layers that tell the same gradients as samples alone do, tried on the samples that pull the most.

        Not kept are layers whose weights are used past them, or whose inputs do not begin with a dimension for the
        samples; and none at all if the loss of a batch is not the mean of its samples' losses.
        """
        uses = self._uses(batch)
        strength = torch.zeros(batches.size(batch), dtype=torch.float64)
        for use in (use for of_layer in uses.values() for use in of_layer if use.is_clear()):
            strength += use.gradient.reshape(len(strength), -1).double().norm(dim=1).cpu()
        for sample in strength.argsort(descending=True)[: TRIED[1]].tolist():
            with self._samples_apart(batch):
                alone = self._gradients(batch, sample, list(self.names))
            self.layers = [layer for layer in self.layers if _tells(layer, uses.get(layer.name, []), sample, alone)]
        told = {parameter for layer in self.layers for parameter in layer.parameters}
        self.others = [parameter for parameter in self.names if parameter not in told]

    def add(self, batch: Batch) -> None:
        """Add the squared gradients of the samples in a batch."""
        for uses in self._uses(batch).values():
            self._add(dict(zip(uses[0].layer.parameters, uses[0].layer.split(sum_of_squares(uses)), strict=True)))
        if self.others and self.at_once:
            try:
                self._add(self._squares_at_once(batch))
            except Exception as error:  # whatever torch.func cannot do with somebody's model
                self.at_once = False
                self._warn(error.__cause__ or error)
        if self.others and not self.at_once:
            with self._samples_apart(batch):
                for sample in range(batches.size(batch)):
                    gradients = self._gradients(batch, sample, self.others)
                    self._add({parameter: gradient.square() for parameter, gradient in gradients.items()})

    def _add(self, squares: Squares) -> None:
        for parameter, square in squares.items():
            self.sums[parameter] += square

    def _samples_apart(self, batch: Batch) -> AbstractContextManager[None]:
        return constant_statistics(self.normalized, lambda: self.loss(batch))

    def _uses(self, batch: Batch) -> dict[str, list[Use]]:
        with self._samples_apart(batch):
            return uses_of(self.layers, lambda: self.loss(batch), batches.size(batch))

    def _gradients(self, batch: Batch, sample: int, parameters: list[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
        """Of one sample's own loss."""
        loss = self.loss(batches.part(batch, slice(sample, sample + 1)))
        if not loss.requires_grad:
            return {}
        gradients = zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True)
        return {p: gradient.to_dense().to(self.sums[p].dtype) for p, gradient in gradients if gradient is not None}

    def _squares_at_once(self, batch: Batch) -> Squares:
        """By ``torch.func``, as many samples at a time as there is memory for."""
        module = _LossModule(self.model, self.loss)
        weights = {f"model.{self.names[parameter]}": parameter.detach() for parameter in self.others}

        def own_loss(weights: dict[str, Tensor], tensors: list[Tensor]) -> Tensor:
            rest = iter(tensors)
            sample = batches.map_samples(batch, lambda _: next(rest).unsqueeze(0))
            return functional_call(module, weights, (sample,))

        tensors: list[Tensor] = []
        batches.map_samples(batch, tensors.append)
        chunk = max(1, BYTES // (sum(parameter.nbytes for parameter in self.others) or 1))
        squares = {parameter: torch.zeros_like(self.sums[parameter]) for parameter in self.others}
        # Attention as plain products: vmap would take torch's fused kernels one sample at a time.
        with torch.no_grad(), self._samples_apart(batch), sdpa_kernel(SDPBackend.MATH):
            for part in zip(*(tensor.split(chunk) for tensor in tensors), strict=True):
                gradients = vmap(grad(own_loss), in_dims=(None, 0))(weights, list(part))
                for parameter, gradient in zip(self.others, gradients.values(), strict=True):
                    squares[parameter] += gradient.to(squares[parameter].dtype).square().sum(0)
        return squares

    def _warn(self, error: BaseException) -> None:
        warnings.warn(
            f"{len(self.others)} parameters, first '{self.names[self.others[0]]}', get their gradients one sample at a "
            f"time, which is slow: torch.func cannot take this model ({' '.join(str(error).split())[:200]})",
            CuberWarning,
            stacklevel=6,
        )


class _LossModule(nn.Module):
    """The loss as a module, for ``functional_call`` to reach the model however the loss goes through it."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> Tensor:
        return self.loss(batch).sum()


def _tells(layer: ProtectedLayer, uses: list[Use], sample: int, alone: dict[nn.Parameter, Tensor]) -> bool:
    """Whether a layer's uses in a batch tell the gradient that a sample has alone."""
    if not all(use.is_clear() for use in uses):
        return False
    expected = layer.join([alone.get(p, torch.zeros_like(p)) for p in layer.parameters])
    told = sample_gradients(uses, slice(sample, sample + 1))[0] if uses else torch.zeros_like(expected)
    tolerance = torch.finfo(layer.parameter.dtype).eps ** 0.5
    return bool((told - expected).norm() <= tolerance * expected.norm())
