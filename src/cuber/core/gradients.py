"""Gradients of the mean loss over all samples, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from cuber.core import batches, distributed
from cuber.core.batches import Batch
from cuber.errors import CuberError
from cuber.layers import evaluation_mode

if TYPE_CHECKING:
    from cuber.core.layerwise import LayerwiseMethod


def mean_gradients(learner: LayerwiseMethod, loader: Iterable[Batch], *, dropout: bool) -> dict[str, Tensor]:
    """Return the gradients of :meth:`LayerwiseMethod.mean_gradients`."""
    layers = [layer for layer in learner.layers.values() if layer.requires_grad]
    totals: dict[Tensor, Tensor] = {}
    count = 0
    if not layers:
        return {}
    torch.clear_autocast_cache()  # inside an autocast, torch 2.8 keeps weights that were cast without gradients
    with evaluation_mode(learner.model, dropout=dropout), torch.enable_grad(), parametrize.cached():
        tensors = {layer: layer.tensors for layer in layers}
        weights = [tensor for of_layer in tensors.values() for tensor in of_layer]
        for batch in loader:
            samples = batches.size(batch)
            count += samples
            loss = learner.try_loss(batch, "batches") * samples
            if not bool(loss.isfinite()):
                raise CuberError(
                    f"the loss of task {learner.tasks} is {float(loss.detach())} after {learner.epoch} epochs: "
                    "lower the learning rate, or look at the inputs"
                )
            if not loss.requires_grad:
                continue
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
            for weight, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
                    totals[weight] = totals[weight] + gradient if weight in totals else gradient
    if distributed.is_active():
        like = [w.to(torch.promote_types(w.dtype, torch.float32)) for w in weights]
        sums = distributed.sum_present([totals.get(w) for w in weights], like)
        totals = {w: total for w, total in zip(weights, sums, strict=True) if total is not None}
        count = int(distributed.sum_numbers(count)[0])
    return {
        layer.name: layer.join([totals.get(w, torch.zeros_like(w)) for w in of_layer]) / count
        for layer, of_layer in tensors.items()
        if of_layer[0] in totals
    }
