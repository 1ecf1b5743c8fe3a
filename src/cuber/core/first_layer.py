"""One vector for each sample of a batch, from the input of the first layer that a model calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from cuber.core import batches, masks
from cuber.core.batches import Batch
from cuber.core.descriptions import describe
from cuber.core.layerwise import LayerwiseMethod
from cuber.errors import CuberError
from cuber.layers import (
    ProtectedLayer,
    attached,
    evaluation_mode,
    normalized_by_batch,
    observed,
    observed_norms,
    scan,
)
from cuber.networks.heads import head_parameters

if TYPE_CHECKING:
    from cuber.core.learner import Method


class FirstInput(NamedTuple):
    """What a batch looks like at the first layer that it reaches."""

    layer: str
    """Name of the layer."""
    vectors: Tensor | None
    """Samples x D, as ``describe`` returns them."""
    is_trained: bool
    """Whether parameters that are trained have computed it; known only where gradients are enabled."""


class _Reached(BaseException):
    """Ends a forward pass at the first layer. Not an Exception, which models may catch."""

    def __init__(self, found: FirstInput) -> None:
        super().__init__(found.layer)
        self.found = found


def first_input(
    layers: Iterable[ProtectedLayer], call: Callable[[], Any], samples: int, real: Tensor | None
) -> FirstInput | None:
    """Run a call up to the first of some layers, where it ends; None if it reaches none of them.

    Args:
        layers: attached ones.
        call: runs the model on a batch.
        samples: in the batch.
        real: which positions of a sequence are not padding, samples x positions; None: all.
    """

    def observe(layer: ProtectedLayer, _: nn.Module, x: Tensor) -> None:
        raise _Reached(FirstInput(layer.name, describe(layer, x.detach(), samples, real), x.requires_grad))

    try:
        with observed(layers, observe):
            call()
    except _Reached as reached:
        return reached.found
    return None


class FirstLayer:
    """Describes batches by what any method's model sees of them first, where training does not change it.

    Args:
        learner: any method. Of one that protects no layers, those that cuber has a rule for are attached for a moment.
    """

    def __init__(self, learner: Method) -> None:
        self.learner = learner
        self._scanned: dict[str, ProtectedLayer] = {}
        if not isinstance(learner, LayerwiseMethod):
            self._scanned = scan(learner.model, exempt=head_parameters(learner.model)).layers
            if not self._scanned:
                raise CuberError(
                    "no trained layer of this model has a rule, so that its inputs are not known; see cuber.layers"
                )

    def describe(self, batch: Batch) -> Tensor:
        """Return a vector for each sample of a batch, n x D, on the CPU."""
        with observed_norms(self.learner.model) as norms:
            found = self._reach(batch)
        if found is None:
            raise CuberError("this batch reaches no layer that cuber has a rule for, so that its inputs are not known")
        if found.is_trained:
            raise CuberError(
                f"the inputs of layer '{found.layer}' are computed by trained parameters, so that they change during "
                "training: freeze what is before the first layer (an embedding, say), or tell task boundaries yourself"
            )
        if norms and self._are_changing(norms):
            raise CuberError(
                f"the inputs of layer '{found.layer}' are normalized by statistics that change from batch to batch: "
                "normalize the data before they reach the model, or tell task boundaries yourself"
            )
        if found.vectors is None:
            raise CuberError(
                f"layer '{found.layer}' does not see an input of real numbers for each of the "
                f"{batches.size(batch)} samples of a batch: give batches with at least one sample, samples first"
            )
        if not bool(found.vectors.isfinite().all()):
            raise CuberError(f"layer '{found.layer}' sees inputs that are not finite: check the batches")
        return found.vectors.cpu()

    def _are_changing(self, norms: list[nn.Module]) -> bool:
        """Return whether some of these layers have statistics of each batch, or those that training estimates."""
        model = self.learner.model
        changing = [*normalized_by_batch(model), *self.learner.normalization.trained_layers(model)]
        return any(module in changing for module in norms)

    def _reach(self, batch: Batch) -> FirstInput | None:
        """Run the model up to its first layer, with gradients to see whether trained parameters compute its input."""
        learner = self.learner

        def call() -> None:
            if learner.forward is not None:
                learner.forward(learner.model, batch)
            else:
                x = batch[0] if isinstance(batch, list | tuple) else batch
                learner.model(batches.to(x, learner.device))

        layers = learner.layers if isinstance(learner, LayerwiseMethod) else self._scanned
        if isinstance(learner, masks.MaskedInputs):
            real = learner.real_positions(batch)
        else:
            real = masks.real_positions(learner.model, batch)
        explained = batches.explained("the model cannot take a batch")
        with evaluation_mode(learner.model), attached(self._scanned.values()), torch.enable_grad(), explained:
            return first_input(layers.values(), call, batches.size(batch), real)
