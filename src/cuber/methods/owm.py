"""Orthogonal weights modification (Zeng, Chen, Cui and Yu, 2019): change weights orthogonally to old tasks' inputs.

Every layer has a projector P. While a later task is learned, updates of ``[W | b]`` are multiplied by it. After each
task, P is updated with the mean inputs x of the task's batches i = 1..n:

    k = P x / (alpha_i + x' P x),    P <- P - k x' P,    alpha_i = alpha * alpha_decay^(i / n)

That is recursive least squares: each update adds x x' / alpha_i to the inverse of P. So the inverse is remembered, and
P is computed from it once per task. As in the authors' program, x is the mean of the layer's inputs over a batch, for
each position of a convolution or a sequence apart; their text sends the batch's mean image through the network.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.settings import PerLayer, for_layer, setting
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
class OWM(FilteredUpdates):
    """Let the weights of a layer change only orthogonally to the inputs of old tasks."""

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
            self._alphas(name)
        self.compute_projectors()

    def compute_projectors(self) -> None:
        """Compute P of every layer from its inverse."""
        self.projectors = {}
        for name, inverse in self.memory.items():
            if name in self.layers:
                weight = self.layers[name].parameter
                projector = torch.cholesky_inverse(torch.linalg.cholesky(inverse))
                self.projectors[name] = projector.to(weight.device, torch.promote_types(weight.dtype, torch.float32))

    def filter_update(self, layer: ProtectedLayer, change: Tensor) -> Tensor:
        """Multiply by P."""
        projector = self.projectors.get(layer.name)
        return change if projector is None else (change.to(projector.dtype) @ projector).to(change.dtype)

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        inputs = self.mean_inputs(loader)
        self.memory |= {name: self._updated(name, seen.gram) for name, seen in inputs.items() if seen.gram.count}

    def mean_inputs(self, loader: Iterable[Batch]) -> dict[str, MeanInputs]:
        """Return the mean inputs of each layer over the task's data, in evaluation mode."""
        means = -(-batches.count(loader) // self.averaged)
        inputs = {
            name: MeanInputs(layer, *self._alphas(name), self.averaged, means) for name, layer in self.layers.items()
        }

        def observe(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> None:
            inputs[layer.name].add(module, x)

        with torch.no_grad(), evaluation_mode(self.model), observed(self.layers.values(), observe):
            for batch in loader:
                for seen in inputs.values():
                    seen.next_batch(batches.size(batch))
                self.loss(batch)
        for seen in inputs.values():
            seen.close()
        return inputs

    def _updated(self, name: str, gram: Gram) -> Tensor:
        """Return the inverse of a layer's P with a task's inputs added."""
        if not gram.energy < float("inf"):
            raise CuberError(f"task {self.task}: layer '{name}' sees inputs that are not finite")
        inverse = gram.matrix.cpu() + self.memory.get(name, torch.eye(gram.dimension, dtype=torch.float64))
        if inverse.trace() > LARGEST:
            raise CuberError(
                f"task {self.task}: the inputs of layer '{name}' are too large for its alpha, so that rounding errors "
                "would dominate P: set a larger alpha or alpha_decay and call end_task again"
            )
        return inverse

    def _alphas(self, name: str) -> tuple[float, float]:
        names = list(self.layers)
        return for_layer(self.alpha, name, names, "alpha"), for_layer(self.alpha_decay, name, names, "alpha_decay")

    def on_state_loaded(self) -> None:
        super().on_state_loaded()
        if self.task is not None:
            self.compute_projectors()


@dataclass
class MeanInputs:
    """The sum of x x' / alpha_i over the mean inputs x of a layer, whatever the size of the loader's batches."""

    layer: ProtectedLayer
    alpha: float
    decay: float
    averaged: int
    means: int
    """n, the number of means."""
    seen: int = 0
    """Number of samples in the batches before."""
    present: int = 0
    """Number of samples in the present batch."""
    calls: int = 0
    """Number of calls of the layer with the present batch."""
    rests: dict[Any, Tensor] = field(default_factory=dict)
    """(Number of the call, input shape) -> vectors of samples that are too few for a mean yet."""

    def __post_init__(self) -> None:
        self.gram = Gram(self.layer.dimension)

    def next_batch(self, samples: int) -> None:
        """Begin a batch."""
        self.seen += self.present
        self.present, self.calls = samples, 0

    def add(self, module: nn.Module, x: Tensor) -> None:
        """Add an input of the layer."""
        vectors = self.layer.vectors(module, x)
        if x.is_nested or len(x) != self.present or len(vectors) % self.present:
            # Which vector belongs to which sample is not known: add each by itself, which protects no less.
            last = torch.tensor([self.seen + self.present])
            self._add_means(vectors.unsqueeze(0) / self.averaged**0.5, last)
            return
        place = (self.calls, x.shape[1:])
        self.calls += 1
        samples = vectors.unflatten(0, (self.present, -1))
        rest = self.rests.get(place, samples[:0])
        samples = torch.cat([rest, samples])
        whole = len(samples) // self.averaged
        groups = samples[: whole * self.averaged].unflatten(0, (whole, self.averaged))
        self.rests[place] = samples[whole * self.averaged :]
        ends = self.seen - len(rest) + self.averaged * torch.arange(1, whole + 1)
        self._add_means(groups.mean(1), ends)

    def close(self) -> None:
        """Add the mean of the samples that are left over."""
        for rest in self.rests.values():
            if len(rest):
                self._add_means(rest.mean(0, keepdim=True), torch.tensor([self.seen + self.present]))

    def _add_means(self, means: Tensor, ends: Tensor) -> None:
        """Add means (m x positions x d), each over samples up to the number in ``ends``."""
        numbers = -(-ends // self.averaged)
        alphas = self.alpha * self.decay ** (numbers.double() / self.means)
        weighted = means / alphas.sqrt().to(means).reshape(-1, 1, 1)
        self.gram.add(weighted.flatten(0, 1))
