"""Orthogonal weights modification (Zeng, Chen, Cui and Yu, 2019): change weights across what old tasks see.

Every layer has a projector P. While a later task is learnt, a change of ``[W | b]`` is multiplied with it. After each
task, P takes in the mean inputs x of the task's batches i = 1..n one after the other:

    k = P x / (alpha_i + x' P x),    P <- P - k x' P,    alpha_i = alpha * alpha_decay^(i / n)

That is recursive least squares: each step adds x x' / alpha_i to the inverse of P. So the sum is what is remembered,
and P is found from it at once. As the authors' program does, x is the mean of what the layer sees of the batch, for
each position of a convolution or a sequence by itself; their text sends the batch's mean image through the network.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.settings import PerLayer, for_layer, setting
from cuber.core.update_filter import ModulatedSteps
from cuber.errors import CuberError
from cuber.layers import ProtectedLayer, evaluation_mode, observed
from cuber.subspace import Gram

LARGEST = 1e-3 / torch.finfo(torch.float64).eps
"""Sum of the inverse's diagonal: beyond it, rounding passes a thousandth of the 1 of directions nobody has seen."""


@dataclass(eq=False, repr=False)
class OWM(ModulatedSteps):
    """Let the weights of a layer change only across the inputs that old tasks have shown it."""

    alpha: PerLayer = setting(
        0.3,
        "how little a mean input of old tasks counts: the smaller, the firmer it is held",
        low=1e-9,
        per_layer=True,
    )
    alpha_decay: PerLayer = setting(
        1.0, "what alpha is multiplied with on the way through a task's data", low=1e-9, high=1, per_layer=True
    )
    averaged: int = setting(10, "training samples that make one mean input", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory: dict[str, Tensor] = {}
        """Layer name -> the inverse of P, in float64; no entry is the identity."""
        self._projectors: dict[str, Tensor] = {}

    # The algorithm

    def on_task_begin(self) -> None:
        for name in self.layers:  # a list of the wrong length is better told now than after the training
            self._alphas(name)
        self._invert()

    def _invert(self) -> None:
        """Find P of every layer, for steps on its weights."""
        self._projectors = {}
        for name, inverse in self.memory.items():
            if name in self.layers:
                weight = self.layers[name].parameter
                projector = torch.cholesky_inverse(torch.linalg.cholesky(inverse))
                self._projectors[name] = projector.to(weight.device, torch.promote_types(weight.dtype, torch.float32))

    def modulate(self, layer: ProtectedLayer, change: Tensor) -> Tensor:
        projector = self._projectors.get(layer.name)
        return change if projector is None else (change.to(projector.dtype) @ projector).to(change.dtype)

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        inputs = self._look(loader)
        grown = {name: self._grown(name, seen.gram) for name, seen in inputs.items() if seen.gram.count}
        self.memory |= grown

    def _look(self, loader: Iterable[Batch]) -> dict[str, MeanInputs]:
        """What each layer sees of the task, in evaluation mode."""
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

    def _grown(self, name: str, gram: Gram) -> Tensor:
        """The inverse of a layer's P with a task's inputs in it."""
        if not gram.energy < float("inf"):
            raise CuberError(f"task {self.task}: layer '{name}' sees inputs that are not finite")
        inverse = gram.matrix.cpu()  # Apple's GPUs have no float64, and it is used once a task
        inverse = inverse + self.memory.get(name, torch.eye(len(inverse), dtype=inverse.dtype))
        if inverse.trace() > LARGEST:
            raise CuberError(
                f"task {self.task}: the inputs of layer '{name}' are too large for its alpha, so that P would drown "
                "in rounding: set a larger alpha or alpha_decay and call end_task again"
            )
        return inverse

    def _alphas(self, name: str) -> tuple[float, float]:
        names = list(self.layers)
        return for_layer(self.alpha, name, names, "alpha"), for_layer(self.alpha_decay, name, names, "alpha_decay")

    # What is remembered

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"memory": self.memory}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.memory = {name: inverse.cpu() for name, inverse in state["memory"].items()}
        if self.task is not None:
            self._invert()

    def memory_bytes(self) -> dict[str, int]:
        return {"projectors": sum(inverse.nbytes for inverse in self.memory.values()), **super().memory_bytes()}


@dataclass
class MeanInputs:
    """The sum of x x' / alpha_i over the mean inputs x of a layer, however the samples come in batches."""

    layer: ProtectedLayer
    alpha: float
    decay: float
    averaged: int
    means: int
    """n, how many there will be."""
    seen: int = 0
    present: int = 0
    calls: int = 0
    rests: dict[Any, Tensor] = field(default_factory=dict)
    """Samples too few for a mean yet, for each time that the layer is used in a pass and each shape of its input."""

    def __post_init__(self) -> None:
        self.gram = Gram(self.layer.dimension)

    def next_batch(self, samples: int) -> None:
        """A batch of so many samples is about to be looked at."""
        self.seen += self.present
        self.present, self.calls = samples, 0

    def add(self, module: nn.Module, x: Tensor) -> None:
        """Take in what the layer sees of the batch."""
        vectors = self.layer.vectors(module, x)
        if x.is_nested or len(x) != self.present or len(vectors) % self.present:
            # Whose vector is whose cannot be told: all for themselves, they hold no less than their means would.
            last = torch.tensor([self.seen + self.present])
            self._take(vectors.unsqueeze(0) / self.averaged**0.5, last)
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
        self._take(groups.mean(1), ends)

    def close(self) -> None:
        """There are no more samples: what is left over makes a mean, too."""
        for rest in self.rests.values():
            if len(rest):
                self._take(rest.mean(0, keepdim=True), torch.tensor([self.seen + self.present]))

    def _take(self, means: Tensor, ends: Tensor) -> None:
        """Means (m x positions x d) of samples up to these."""
        numbers = -(-ends // self.averaged)
        alphas = self.alpha * self.decay ** (numbers.double() / self.means)
        weighted = means / alphas.sqrt().to(means).reshape(-1, 1, 1)
        self.gram.add(weighted.flatten(0, 1))
