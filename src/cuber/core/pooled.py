"""The bookkeeping of methods that keep a pool of basis vectors per layer: memory, anchors, scalings, restoring.

The algorithm of these methods is in ``methods/cuber.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.core import batches, distributed, masks
from cuber.core.batches import Batch
from cuber.core.grams import sum_gram
from cuber.core.input_densities import InputDensities
from cuber.core.layerwise import LayerwiseMethod
from cuber.core.misuse import require_task
from cuber.core.optimizer_hooks import OptimizerHooks
from cuber.core.settings import PerLayer, setting
from cuber.errors import CuberError, CuberWarning
from cuber.layers import BACKENDS, ProtectedLayer, evaluation_mode, observed
from cuber.subspace import (
    BACKWARD_TRANSFER,
    FORWARD_TRANSFER,
    WIDE,
    Anchor,
    Constraint,
    Gram,
    LayerMemory,
    LearnedScaling,
    Penalty,
    Regime,
    Scaling,
    Sketch,
    coordinates,
    full_precision,
    held_share,
    supports_of,
)

NOTICEABLE_DRIFT = 1e-3
HIGHEST_STEP = 0.999
"""Where ``threshold_step`` stops: with the last thousandth protected, late tasks would have no direction left."""


@dataclass(eq=False, repr=False)
class PooledMethod(InputDensities):
    """A method with a :class:`LayerMemory` per layer, which constrains where weights may move."""

    remembered: ClassVar[dict[str, Any]] = {"memory": dict[str, LayerMemory]}
    in_task: ClassVar[dict[str, Any]] = {
        "anchors": dict[str, Anchor],
        "learning": dict[str, LearnedScaling],
        "steps": int,
        "displacements": dict[str, Tensor],
    }
    kinds: ClassVar[dict[str, str]] = {"basis": "bases", "owners": "bases", "importance": "bases"}

    penalty, check = "norm", "epoch"  # without annotations: constants here, settings of CUBER

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
    backend: str = setting(
        "fast",
        "how layers compute: with shortcuts, or by the formulas as printed",
        choices=tuple(BACKENDS),
        equivalent=True,
    )

    def __post_init__(self) -> None:
        self.memory: dict[str, LayerMemory] = {}
        """Layer name -> what the layer remembers of all tasks."""
        self.anchors: dict[str, Anchor] = {}
        """Layer name -> its weight when the present task began."""
        self.scalings: dict[str, Scaling] = {}
        """Layer name -> the scaling that the present task learns."""
        self._fell_short: set[str] = set()
        """Layers that it was said of that a sketch is too small."""
        super().__post_init__()
        self.optimizers = OptimizerHooks(self, self.layers, self.row_memory)
        self._open_memory()

    def make_layer(self, layer: ProtectedLayer) -> ProtectedLayer:
        layer.use_backend(self.backend)
        return layer

    @property
    def regimes(self) -> list[dict[str, dict[int, Regime]]]:
        """Task -> layer name -> old task -> regime."""
        count = max((len(memory.regimes) for memory in self.memory.values()), default=0)
        return [{name: memory.regimes[task] for name, memory in self.memory.items()} for task in range(count)]

    @property
    def steps(self) -> int:
        """Number of steps in the present task."""
        return self.optimizers.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self.optimizers.steps = steps

    # The constraints of a task

    def try_sample(self) -> None:
        super().try_sample()
        self._open_memory()
        self.optimizers.steps = 0
        for name in self.layers:  # report a list of the wrong length now, not after training
            self.threshold_of(name), self.variance_of(name), self.samples_of(name), self.for_layer("max_rank", name)

    def anchor(self, layer: ProtectedLayer) -> None:
        """Anchor a weight where it is now, and begin to learn a scaling of the old weights that are reused."""
        name, memory = layer.name, self.memory[layer.name]
        if self.tasks:
            layer.set_matrix(layer.matrix())  # so that gradients of a parametrized weight are known
        with full_precision(self.device):
            self.anchors[name] = Anchor.of(layer.matrix().detach(), memory.basis)
        if tasks := memory.in_regime(FORWARD_TRANSFER, BACKWARD_TRANSFER):
            free = ~self.protected_columns(name, at_start=True)
            supports = supports_of(self.anchors[name].start, memory.owners[tasks], free)
            self.scalings[name] = Scaling(memory.basis, memory.owners[tasks], supports, layer.parameter, train=True)
        layer.scaling = self.scalings.get(name)

    def protected_columns(self, name: str, *, at_start: bool = False) -> Tensor:
        """Return the columns of a pool that a layer's weight must not move along: now, or when the task began."""
        return self.memory[name].protected_columns(at_start=at_start)

    def make_penalty(self, layer: ProtectedLayer) -> Penalty | None:
        """Return the penalty on displacements of a layer along columns that may move."""
        return None

    def constrain(self, layer: ProtectedLayer) -> None:
        """Protect all that tasks outside regime 3 read; call again when regimes have changed."""
        memory, anchor = self.memory[layer.name], self.anchors[layer.name]
        if layer.constraint is not None:  # columns that have become protected are held where the weight is now
            with full_precision(self.device):
                anchor.hold(layer.matrix().detach(), layer.constraint.free_columns, memory.basis)
        layer.backend.records = not distributed.is_active()
        protected, free = self.protected_columns(layer.name), ~self.protected_columns(layer.name, at_start=True)
        layer.constraint = Constraint(
            memory.basis, protected, free, anchor, self.make_penalty(layer), anchored=self.check == "epoch"
        )

    def displacement(self, name: str) -> Tensor:
        """Return how far a layer's weight has moved along each column of its pool in the present task, out x K."""
        require_task(self, "displacement")
        with full_precision(self.device):
            matrix = self.layers[name].matrix().detach()
            return coordinates(matrix, self.memory[name].basis) - self.anchors[name].start

    def on_weights_restored(self) -> None:
        for name, layer in self.layers.items():
            if (constraint := layer.constraint) and self.anchors[name].target is not self.anchors[name].start:
                with full_precision(self.device):
                    self.anchors[name].hold(layer.matrix().detach(), constraint.free_columns, constraint.basis)
            layer.backend.after_step(None)

    def on_task_left(self) -> None:
        LayerwiseMethod.on_task_left(self)
        for layer in self.layers.values():
            layer.constraint = None
        self.anchors, self.scalings = {}, {}
        for memory in self.memory.values():
            del memory.regimes[self.tasks :]

    # What a task leaves

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
        if not isinstance(gram, Sketch) or name in self._fell_short:
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

    def warn_of_drift(self) -> None:
        """Warn where weights were changed in protected directions by other means than the wrapped optimizer."""
        for name, layer in self.layers.items():
            drift = self.displacement(name)[:, self.protected_columns(name, at_start=True)]
            size = max(float(layer.matrix().detach().norm()), float(self.anchors[name].start.norm()), 1e-30)
            share = float(drift.norm()) / size
            if share > max(NOTICEABLE_DRIFT, 4 * torch.finfo(layer.parameter.dtype).eps):
                warnings.warn(
                    f"layer '{name}' moved by {share:.1%} in directions that old tasks need: were its weights changed "
                    "by anything but the wrapped optimizer?",
                    CuberWarning,
                    stacklevel=4,
                )

    # How the model is shown, and what trains

    def show_task(self, task: int | None) -> None:
        super().show_task(task)
        for name, layer in self.layers.items():
            layer.scaling = self._scaling_of(task, name)

    def _scaling_of(self, task: int | None, name: str) -> Scaling | None:
        if task is not None and task == self.task:
            return self.scalings.get(name)
        if task is None or task >= self.tasks or (learned := self.memory[name].scalings[task]) is None:
            return None
        return self.known_scaling(learned, name)

    def known_scaling(self, learned: LearnedScaling, name: str, *, train: bool = False) -> Scaling:
        """Return a scaling as it was learned, to be trained further or not; the pool may have grown since."""
        memory, count = self.memory[name], learned.matrix.shape[1]
        owned = memory.owners[learned.tasks][:, :count]
        like = self.layers[name].parameter
        return Scaling(memory.basis[:, :count], owned, learned.supports, like, learned.matrix, train=train)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from super().named_parameters()
        if self.task is not None:
            yield from self._named_scalings()

    def _named_scalings(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, scaling in self.scalings.items():
            tasks = self.memory[name].in_regime(FORWARD_TRANSFER, BACKWARD_TRANSFER)
            yield f"{name}.scaling.{'+'.join(map(str, tasks))}", scaling.matrix

    def check_optimizer(self, optimizer: Optimizer) -> None:
        super().check_optimizer(optimizer)
        self.optimizers.require_parameters(optimizer, self._named_scalings())

    # Saving and loading

    @property
    def learning(self) -> dict[str, LearnedScaling]:
        """Layer name -> what the present task has learned so far."""
        both = FORWARD_TRANSFER, BACKWARD_TRANSFER
        return {name: scaling.learned(self.memory[name].in_regime(*both)) for name, scaling in self.scalings.items()}

    @learning.setter
    def learning(self, learning: dict[str, LearnedScaling]) -> None:
        self.scalings = {name: self.known_scaling(learned, name, train=True) for name, learned in learning.items()}

    @property
    def displacements(self) -> dict[str, Tensor]:
        """Layer name -> its cached displacement: computed anew it would differ in the last bits."""
        cached = {name: layer.backend.cached_displacement for name, layer in self.layers.items()}
        return {name: displacement for name, displacement in cached.items() if displacement is not None}

    @displacements.setter
    def displacements(self, displacements: dict[str, Tensor]) -> None:
        for name in self.anchors:  # the last to be loaded: now layers can be constrained
            self.constrain(self.layers[name])
            self.layers[name].backend.cached_displacement = displacements.get(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copied_displacements": self.displacements}

    def __setstate__(self, state: dict[str, Any]) -> None:
        copied = state.pop("_copied_displacements")
        super().__setstate__(state)
        if self.task is not None:  # copies of layers have no constraint
            self.displacements = copied

    def _open_memory(self) -> None:
        """Make a memory for every protected layer, and for no other."""
        self.memory = {
            name: self.memory.get(name) or LayerMemory.empty(layer.dimension, self.tasks, like=layer.parameter)
            for name, layer in self.layers.items()
        }

    def check_state(self, remembered: dict[str, Any]) -> None:
        super().check_state(remembered)
        memories = [memory for memory in remembered["memory"].values() if any(memory["gradients"])]
        energies = [energy for memory in memories for energy in memory["energies"]]
        if self.penalty == "energy" and memories and all(energy is None for energy in energies):
            raise CuberError("this state was saved by a CUBER with another penalty than 'energy': choose the same")

    def describe(self) -> list[str]:
        lines = [
            f"{name}: {self.memory[name].size} of {layer.dimension} directions protected"
            for name, layer in self.layers.items()
        ]
        return lines + LayerwiseMethod.describe(self)
