"""The bookkeeping of methods that keep a pool of basis vectors per layer: anchors, constraints, scalings, restoring.

The algorithm of these methods is in ``methods/cuber.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.core import distributed
from cuber.core.bases import InputBases
from cuber.core.layerwise import LayerwiseMethod
from cuber.core.misuse import require_task
from cuber.core.settings import setting
from cuber.errors import CuberError, CuberWarning
from cuber.layers import BACKENDS, ProtectedLayer
from cuber.subspace import (
    Anchor,
    Constraint,
    LearnedScaling,
    Penalty,
    Regime,
    Scaling,
    coordinates,
    full_precision,
    supports_of,
)

NOTICEABLE_DRIFT = 1e-3


@dataclass(eq=False, repr=False)
class PooledMethod(InputBases):
    """A method whose memory of old tasks constrains where weights may move."""

    in_task: ClassVar[dict[str, Any]] = {
        "anchors": dict[str, Anchor],
        "learning": dict[str, LearnedScaling],
        "steps": int,
        "displacements": dict[str, Tensor],
    }

    penalty, check = "norm", "epoch"  # without annotations: constants here, settings of CUBER

    backend: str = setting(
        "fast",
        "how layers compute: with shortcuts, or by the formulas as printed",
        choices=tuple(BACKENDS),
        equivalent=True,
    )

    def __post_init__(self) -> None:
        self.anchors: dict[str, Anchor] = {}
        """Layer name -> its weight when the present task began."""
        self.scalings: dict[str, Scaling] = {}
        """Layer name -> the scaling that the present task learns."""
        super().__post_init__()
        self.optimizers.layers = self.layers

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
        self.optimizers.steps = 0

    def anchor(self, layer: ProtectedLayer) -> None:
        """Anchor a weight where it is now, and begin to learn a scaling of the old weights that are reused."""
        name, memory = layer.name, self.memory[layer.name]
        if self.tasks:
            layer.set_matrix(layer.matrix())  # so that gradients of a parametrized weight are known
        with full_precision(self.device):
            self.anchors[name] = Anchor.of(layer.matrix().detach(), memory.basis)
        if tasks := memory.reused():
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
            yield f"{name}.scaling.{'+'.join(map(str, self.memory[name].reused()))}", scaling.matrix

    def check_optimizer(self, optimizer: Optimizer) -> None:
        super().check_optimizer(optimizer)
        self.optimizers.require_parameters(optimizer, self._named_scalings())

    # Saving and loading

    @property
    def learning(self) -> dict[str, LearnedScaling]:
        """Layer name -> what the present task has learned so far."""
        return {name: scaling.learned(self.memory[name].reused()) for name, scaling in self.scalings.items()}

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
        return {**super().__getstate__(), "_copied_displacements": self.displacements}

    def __setstate__(self, state: dict[str, Any]) -> None:
        copied = state.pop("_copied_displacements")
        super().__setstate__(state)
        if self.task is not None:  # copies of layers have no constraint
            self.displacements = copied

    def check_state(self, remembered: dict[str, Any]) -> None:
        super().check_state(remembered)
        memories = [memory for memory in remembered["memory"].values() if any(memory["gradients"])]
        energies = [energy for memory in memories for energy in memory["energies"]]
        if self.penalty == "energy" and memories and all(energy is None for energy in energies):
            raise CuberError("this state was saved by a CUBER with another penalty than 'energy': choose the same")
