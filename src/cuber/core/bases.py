"""Methods that keep a pool of basis vectors per layer: how a task extends it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cuber.core import batches, distributed, masks
from cuber.core.batches import Batch
from cuber.core.grams import sum_gram
from cuber.core.input_densities import InputDensities
from cuber.core.layerwise import LayerwiseMethod
from cuber.core.settings import PerLayer, setting
from cuber.errors import CuberError, CuberWarning
from cuber.layers import ProtectedLayer, evaluation_mode, observed
from cuber.subspace import WIDE, Gram, LayerMemory, Sketch, held_share

HIGHEST_STEP = 0.999
"""Where ``threshold_step`` stops: with the last thousandth protected, late tasks would have no direction left."""


@dataclass(eq=False, repr=False)
class InputBases(InputDensities):
    """A method with a :class:`LayerMemory` per layer, to which each task adds the subspace of its inputs."""

    remembered: ClassVar[dict[str, Any]] = {"memory": dict[str, LayerMemory]}
    kinds: ClassVar[dict[str, str]] = {"basis": "bases", "owners": "bases", "importance": "bases"}

    threshold: PerLayer = setting(
        0.97,
        "fraction of the input energy that a task's subspace must hold (1: all but rounding)",
        low=0,
        high=1,
        per_layer=True,
    )
    threshold_step: float = setting(
        0.003, f"what each further task adds to the threshold, up to {HIGHEST_STEP}", low=0, high=1
    )
    variance: PerLayer = setting(
        0.99999,
        "in models with layer norm: fraction of the variance of the inputs that a task's subspace must hold besides "
        "(0: none)",
        low=0,
        high=1,
        per_layer=True,
    )
    samples: PerLayer = setting(300, "training samples that the bases are computed from", low=1, per_layer=True)
    sketch: str = setting(
        "auto",
        f"bases from a sketch of the inputs instead of their d x d matrix: in layers with more than {WIDE} inputs, in "
        "all, or in none",
        choices=("auto", "always", "never"),
    )
    sketch_rank: int = setting(256, "new directions of a task that a sketch should find", low=1)
    max_rank: PerLayer = setting(
        0,
        "most directions in a layer's pool; those that matter least to old tasks go first (0: no limit)",
        low=0,
        per_layer=True,
    )

    def __post_init__(self) -> None:
        self.memory: dict[str, LayerMemory] = {}
        """Layer name -> what the layer remembers of all tasks."""
        self._fell_short: set[str] = set()
        """Layers that it was said of that a sketch is too small."""
        super().__post_init__()
        self._open_memory()

    def _open_memory(self) -> None:
        """Make a memory for every protected layer, and for no other."""
        self.memory = {
            name: self.memory.get(name) or LayerMemory.empty(layer.dimension, self.tasks, like=layer.parameter)
            for name, layer in self.layers.items()
        }

    def try_sample(self) -> None:
        super().try_sample()
        self._open_memory()
        for name in self.layers:  # report a list of the wrong length now, not after training
            self.threshold_of(name), self.variance_of(name), self.samples_of(name), self.for_layer("max_rank", name)

    def input_grams(self, loader: Iterable[Batch], samples: int | None = None) -> dict[str, Gram]:
        """Return the Gram matrix of each layer's inputs, at the effective weights, in evaluation mode.

        Padded positions are left out.

        Args:
            loader: the task's training data.
            samples: how many to use, for exact matrices (default: those of the bases, and sketches in wide layers).
        """

        def empty(layer: ProtectedLayer) -> Gram:
            return self.make_gram(layer) if samples is None else Gram(layer.dimension)

        grams: dict[str, Gram] = {}
        limits = {name: samples or self.samples_of(name) for name in self.layers}
        seen = present = 0
        real: Tensor | None = None  # positions of the present batch

        def observe(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> None:
            wanted = limits[layer.name] - seen
            if wanted > 0:
                gram = grams.get(layer.name) or grams.setdefault(layer.name, empty(layer))
                sequences = masks.as_sequences(layer, x, real)
                if real is not None and sequences is not None:
                    x = sequences[:wanted][real[:wanted].to(x.device)]
                elif not x.is_nested and len(x) == present:
                    x = x[:wanted]
                gram.add(layer.vectors(module, x))

        with torch.no_grad(), evaluation_mode(self.model), observed(self.layers.values(), observe):
            for batch, start, _ in batches.rounds(batches.take(loader, samples or self.sample_size)):
                if batch is not None:
                    seen, present, real = start, batches.size(batch), self.real_positions(batch)
                    self.try_loss(batch, "batches")
        if distributed.is_active():
            found = {name: sum_gram(grams.get(name), empty(it), it) for name, it in self.layers.items()}
            grams = {name: gram for name, gram in found.items() if gram is not None}
        for name, gram in grams.items():
            if not gram.energy < float("inf"):
                raise CuberError(f"task {self.task}: layer '{name}' sees inputs that are not finite")
        return grams

    def make_gram(self, layer: ProtectedLayer) -> Gram:
        """Return an empty Gram matrix for a layer's inputs, or a sketch."""
        if self.sketch == "never" or (self.sketch == "auto" and layer.dimension <= WIDE):
            return Gram(layer.dimension)
        return Sketch(self.memory[layer.name].basis, self.sketch_rank)

    def extend_pool(self, name: str, gram: Gram | None) -> None:
        """Add the subspace of the present task to the pool of a layer."""
        threshold, variance = self.threshold_of(name), self.variance_of(name)
        share = self.memory[name].add_task(gram, threshold, variance)
        if not isinstance(gram, Sketch) or not gram.energy or name in self._fell_short:
            return
        wanted = held_share(gram, threshold, variance)
        if share < wanted:
            self._fell_short.add(name)
            warnings.warn(
                f"layer '{name}' protects {share:.2%} of its input energy instead of {wanted:.2%}: a sketch of rank "
                f"{self.sketch_rank} holds no more; set a higher sketch_rank",
                CuberWarning,
                stacklevel=5,
            )

    def threshold_of(self, name: str) -> float:
        """Return the energy threshold of a layer in the present task."""
        first = float(self.for_layer("threshold", name))
        return max(first, min(first + self.threshold_step * self.tasks, HIGHEST_STEP))

    def variance_of(self, name: str) -> float:
        """Return the share of the variance that a layer's subspaces must hold."""
        # The mean of activations behind a layer norm has most of their energy, and tells tasks' samples apart least.
        variance = float(self.for_layer("variance", name))
        return variance if self.normalization.has_layer_norm else 0.0

    def samples_of(self, name: str) -> int:
        """Return how many samples the basis of a layer is computed from."""
        return int(self.for_layer("samples", name))

    @property
    def sample_size(self) -> int:
        given = self.samples.values() if isinstance(self.samples, Mapping) else self.samples
        return max(given, default=1) if isinstance(given, Iterable) else given

    def describe(self) -> list[str]:
        lines = [
            f"{name}: {self.memory[name].size} of {layer.dimension} directions protected"
            for name, layer in self.layers.items()
        ]
        return lines + LayerwiseMethod.describe(self)
