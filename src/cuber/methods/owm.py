"""Orthogonal weights modification (Zeng, Chen, Cui and Yu, 2019): change weights orthogonally to old tasks' inputs.

Every layer has a projector P. While a later task is learned, updates of ``[W | b]`` are multiplied by it. After each
task, P is updated with the mean inputs x of the task's batches i = 1..n:

    k = P x / (alpha_i + x' P x),    P <- P - k x' P,    alpha_i = alpha * alpha_decay^(i / n)

That is recursive least squares: each update adds x x' / alpha_i to the inverse of P. So the inverse is remembered, and
P is computed from it once per task. As in the authors' program, x is the mean of the layer's inputs over a batch, for
each position of a convolution or a sequence apart; their text sends the batch's mean image through the network. Where
sequences are padded, it is the mean over those samples that have the position.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cuber.core import batches, masks
from cuber.core.batches import Batch
from cuber.core.masks import MaskedInputs
from cuber.core.settings import PerLayer, setting
from cuber.core.update_filter import FilteredUpdates
from cuber.errors import CuberError
from cuber.layers import ProtectedLayer, evaluation_mode, observed
from cuber.subspace import Gram

LARGEST = 1e-3 / torch.finfo(torch.float64).eps
"""Largest trace of the inverse of P; above it, rounding errors in P exceed 1e-3."""


class CPUTensors(dict[str, Tensor]):
    """Tensors by name that stay on the CPU, also where the model does not: some devices have no float64."""

    def to_plain(self) -> dict[str, Tensor]:
        return dict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Tensor], device: torch.device) -> CPUTensors:
        return cls((name, tensor.cpu()) for name, tensor in plain.items())


@dataclass(eq=False, repr=False)
class OWM(FilteredUpdates, MaskedInputs):
    """Let the weights of a layer change only orthogonally to the inputs of old tasks.

    Args:
        model: any ``nn.Module``, with a ``MultiHead`` where tasks have a head each.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.
        mask: function of a batch that says which positions are real, or None; default: ``attention_mask``.

    >>> learner = OWM(nn.Linear(4, 2), alpha=0.1)
    """

    remembered: ClassVar[dict[str, Any]] = {"memory": CPUTensors}
    kinds: ClassVar[dict[str, str]] = {"memory": "projectors"}

    alpha: PerLayer = setting(
        0.3, "how little old inputs count: the smaller, the firmer they are protected", low=1e-9, per_layer=True
    )
    alpha_decay: PerLayer = setting(
        1.0, "factor on alpha at the end of a task's data", low=1e-9, high=1, per_layer=True
    )
    averaged: int = setting(10, "training samples in one mean input", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = CPUTensors()
        """Layer name -> the inverse of P, in float64; a layer without entry has the identity."""
        self.projectors: dict[str, Tensor] = {}
        """Layer name -> P, for the present task."""

    def on_task_begin(self) -> None:
        for name in self.layers:  # report a list of the wrong length now, not after training
            self.alpha_at(name, 0)
        self.compute_projectors()

    def compute_projectors(self) -> None:
        """Compute P of every layer from its inverse."""
        self.projectors = {}
        for name in self.memory.keys() & self.layers.keys():
            weight, inverse = self.layers[name].parameter, self.memory[name]
            projector = torch.cholesky_inverse(torch.linalg.cholesky(inverse))
            self.projectors[name] = projector.to(weight.device, torch.promote_types(weight.dtype, torch.float32))

    def on_task_left(self) -> None:
        self.projectors = {}
        super().on_task_left()

    def filter_update(self, layer: ProtectedLayer, change: Tensor) -> Tensor:
        """Multiply by P."""
        projector = self.projectors.get(layer.name)
        return change if projector is None else (change.to(projector.dtype) @ projector).to(change.dtype)

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        """Add x x' / alpha_i to the inverse of P, for all mean inputs x."""
        inverses = {}
        for name, gram in self.mean_inputs(loader).items():
            if not gram.energy < float("inf"):
                raise CuberError(f"task {self.task}: layer '{name}' sees inputs that are not finite")
            identity = torch.eye(gram.dimension, dtype=torch.float64)
            inverses[name] = gram.matrix.cpu() + self.memory.get(name, identity)
            if inverses[name].trace() > LARGEST:
                raise CuberError(
                    f"task {self.task}: the inputs of layer '{name}' are too large for its alpha, so that rounding "
                    "errors would dominate P: set a larger alpha or alpha_decay and call end_task again"
                )
        self.memory |= inverses

    def mean_inputs(self, loader: Iterable[Batch]) -> dict[str, Gram]:
        """Return the sum of x x' / alpha_i for each layer, over the means x of ``averaged`` samples each.

        They are the same for any batches of the loader, in evaluation mode.
        """
        total = batches.count(loader)
        grams = {name: Gram(layer.dimension) for name, layer in self.layers.items()}
        # (layer, number of the call, shape of an input, or None if it is masked) -> samples too few for a mean yet
        left_over: dict[Any, Tensor] = {}
        calls: Counter[ProtectedLayer] = Counter()  # with the present batch
        before = present = 0  # number of samples in earlier batches, and in the present one
        real: Tensor | None = None  # positions of the present batch

        def add(layer: ProtectedLayer, means: Tensor, last: Tensor) -> None:
            """Add means (m x positions x d), each over samples up to the number in ``last``."""
            if means.shape[-1] > layer.dimension:
                means = masks.uncounted(means)
            progress = (last.double() / self.averaged).ceil() / math.ceil(total / self.averaged)
            weighted = means / self.alpha_at(layer.name, progress).sqrt().to(means).reshape(-1, 1, 1)
            grams[layer.name].add(weighted.flatten(0, 1))

        def observe(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> None:
            sequences = masks.as_sequences(layer, x, real)
            x = x if sequences is None else sequences
            vectors = layer.vectors(module, x)
            if x.is_nested or len(x) != present or len(vectors) % present:
                # Which vector belongs to which sample is not known: add each by itself, which protects no less.
                add(layer, vectors.unsqueeze(0) / self.averaged**0.5, torch.tensor([before + present]))
                return
            place = layer, calls[layer], x.shape[1:] if sequences is None else None
            calls[layer] += 1
            samples = vectors.unflatten(0, (present, -1))
            if real is not None and sequences is not None:
                samples = masks.counted(samples, real)
            if place in left_over:
                samples = masks.concatenated(left_over[place], samples)
            whole = len(samples) // self.averaged * self.averaged
            left_over[place] = samples[whole:]
            means = samples[:whole].unflatten(0, (-1, self.averaged)).mean(1)
            first = before + present - len(samples)
            add(layer, means, first + self.averaged * torch.arange(1, len(means) + 1))

        with torch.no_grad(), evaluation_mode(self.model), observed(self.layers.values(), observe):
            for batch in batches.of_all_processes(loader):  # a mean may be over samples of several processes
                before, present = before + present, batches.size(batch)
                real = self.real_positions(batch)
                calls.clear()
                self.loss(batch)
        for (layer, *_), samples in left_over.items():
            if len(samples):
                add(layer, samples.mean(0, keepdim=True), torch.tensor([before + present]))
        return {name: gram for name, gram in grams.items() if gram.count}

    def alpha_at(self, layer: str, progress: Any) -> Any:
        """Return alpha_i of a layer, where progress is i / n."""
        return self.for_layer("alpha", layer) * self.for_layer("alpha_decay", layer) ** progress

    def on_state_loaded(self) -> None:
        super().on_state_loaded()
        if self.task is not None:
            self.compute_projectors()
