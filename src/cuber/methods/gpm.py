"""Gradient Projection Memory (Saha, Garg and Roy, 2021): learn orthogonally to what old tasks see.

After each task the subspace of its inputs, layer by layer, joins a pool of basis vectors. While later tasks are
learnt the weights do not move along the pool, so old tasks keep their outputs.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.device import full_precision
from cuber.core.layerwise import LayerwiseMethod
from cuber.core.settings import PerLayer, for_layer, setting
from cuber.errors import CuberError, CuberWarning
from cuber.layers import ProjectedProduct, ProtectedLayer, evaluation_mode, observed
from cuber.subspace import (
    BACKWARD_TRANSFER,
    HIGHEST_THRESHOLD,
    ROUNDING,
    Gram,
    Held,
    PartlyHeld,
    Pool,
    Projector,
    Regime,
)

Regimes = dict[str, dict[int, Regime]]
"""Layer name -> old task -> regime."""

NOTICEABLE_DRIFT = 1e-3
STEPS_TO_SETTLE = 1000
"""Rounding adds up: after so many steps, protected directions are put back."""


@dataclass(eq=False, repr=False)
class GPM(LayerwiseMethod):
    """Protect the input subspace of every old task in every layer."""

    threshold: PerLayer = setting(
        0.97,
        f"fraction of the input energy that a task's subspace must hold; above {HIGHEST_THRESHOLD} it counts as "
        f"{HIGHEST_THRESHOLD}: the rest may be rounding",
        low=0,
        high=1,
        per_layer=True,
    )
    threshold_step: float = setting(0.003, "what each further task adds to the threshold", low=0, high=1)
    samples: PerLayer = setting(300, "training samples that the bases are computed from", low=1, per_layer=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory: dict[str, Pool] = {}
        """Layer name -> its pool of basis vectors and which task owns which."""
        self.regimes: list[Regimes] = []
        """Task -> layer name -> old task -> regime."""
        self._held: dict[str, Held | PartlyHeld] = {}
        """Layer name -> where its weight is held while the present task is learnt."""
        self._projectors: dict[str, Projector] = {}
        self._steps = 0
        self._open_pools()

    # The algorithm

    def _start(self) -> None:
        self._open_pools()
        self._steps = 0
        for name in self.layers:  # a list of the wrong length is better told now than after the training
            self._threshold(name)
            self._samples(name)
        self.regimes[self.tasks :] = [self.correlate()]
        self._held = {name: self._hold(name) for name in self.layers}
        for name in self.layers:
            self._protect(name)

    def _hold(self, name: str) -> Held | PartlyHeld:
        """A layer's weight where it is now."""
        weight, pool = self.layers[name].matrix().detach(), self.memory[name]
        free = ~self._protected_columns(name, at_start=True)
        if bool(free.any()):
            return PartlyHeld(pool.basis, weight.clone(), pool.columns(free))
        with full_precision(self.device):
            return Held.of(weight, pool.basis)

    def _open_pools(self) -> None:
        """A pool for every protected layer, and for no other."""
        self.memory = {
            name: self.memory.get(name) or Pool.empty(layer.dimension, self.tasks, like=layer.parameter)
            for name, layer in self.layers.items()
        }
        for name, pool in self.memory.items():
            pool.follow(self.layers[name].parameter)

    def correlate(self) -> Regimes:
        """How the new task stands to each old one: here, every old task is only to be protected."""
        return {name: {task: Regime() for task in range(self.tasks)} for name in self.layers}

    def before_step(self, optimizer: Optimizer) -> None:
        straight = self._steps_straight(optimizer)
        for layer in self._layers_of(optimizer):
            projector, held = self._projectors[layer.name], self._held[layer.name]
            layer.require_whole()
            if not layer.is_projected() and projector.rank:
                layer.project_gradient(projector)
            if projector.rank and not straight and isinstance(held, Held):
                held.keep_whole(layer.matrix().detach())

    def after_step(self, optimizer: Optimizer) -> None:
        self._steps += 1
        if self._steps % STEPS_TO_SETTLE == 0:
            self._settle()
        elif not self._steps_straight(optimizer):
            self._settle(all_layers=False)

    def _stays(self, layer: ProtectedLayer) -> bool:
        """Whether a layer's weight is still where it is held, judged by one protected direction.

        So it is with momentum; Adam's steps, and decay, leave the way of the gradients.
        """
        if layer.parameter.element_size() < 4:  # in half precision nothing is as exact as that
            return False
        direction = self._projectors[layer.name].probes[0]
        (now,), was = layer.along(list(layer.parameters), direction), self._held[layer.name].at(direction)
        return bool((now - was).norm() <= ROUNDING * torch.finfo(now.dtype).eps * was.norm())

    def end_epoch(self) -> None:
        super().end_epoch()
        self._settle()

    def _finish(self, loader: Iterable[Batch]) -> None:
        self._warn_of_drift()
        self._settle()
        self._extend(self._input_grams(loader))

    def _extend(self, grams: dict[str, Gram]) -> None:
        """Let the task own the directions that it needs, in every layer."""
        for name, pool in self.memory.items():
            pool.add_task(grams.get(name), self._threshold(name))

    def _protect(self, name: str) -> None:
        """Hold the directions that any task outside regime 3 reads."""
        projector = Projector(self.memory[name].columns(self._protected_columns(name)))
        self._projectors[name] = projector
        self.layers[name].product = ProjectedProduct(projector) if projector.rank else None

    def _protected_columns(self, name: str, *, at_start: bool = False) -> Tensor:
        """What is held now, or was when the task began and nothing had fallen from regime 3 yet."""
        pool = self.memory[name]
        protected = torch.zeros(pool.size, dtype=torch.bool, device=pool.owners.device)
        for task, regime in self.regimes[-1][name].items():
            if regime.number != BACKWARD_TRANSFER and not (at_start and regime.fell is not None):
                protected |= self.columns_read(task, name)
        return protected

    def columns_read(self, task: int, name: str) -> Tensor:
        """Which columns of a layer's pool an old task's answers depend on."""
        return self.memory[name].owners[task]

    def moved(self, name: str) -> Tensor:
        """How far a layer's weight has moved along each column of its pool since the present task began: out x K."""
        self._require_task("moved")
        with full_precision(self.device):
            return self._held[name].change(self.layers[name].matrix().detach())

    @torch.no_grad()
    def _settle(self, *, all_layers: bool = True) -> None:
        """Put protected directions back to where they are held, in all layers or in those that have left it."""
        with full_precision(self.device):
            for name, layer in self.layers.items():
                projector = self._projectors[name]
                layer.recall(None)
                if projector.rank and layer.moves and (all_layers or not self._stays(layer)):
                    layer.set_matrix(self._held[name].put_back(layer.matrix(), projector))

    def _weights_restored(self) -> None:
        for name, held in self._held.items():
            held.follow(self.layers[name].matrix().detach())

    def _leave_task(self) -> None:
        for layer in self.layers.values():
            layer.product = None
        self._held = {}
        super()._leave_task()

    def _input_grams(self, loader: Iterable[Batch]) -> dict[str, Gram]:
        """What each layer sees of the task, at its effective weights, in evaluation mode."""
        grams: dict[str, Gram] = {}
        limits = {name: self._samples(name) for name in self.layers}
        seen = 0

        def observe(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> None:
            wanted = limits[layer.name] - seen
            if wanted > 0:
                gram = grams.setdefault(layer.name, Gram(layer.dimension))
                whole = x.is_nested or len(x) != present or wanted >= present
                layer.add_vectors(gram, module, x if whole else x[:wanted])

        with torch.no_grad(), evaluation_mode(self.model), observed(self.layers.values(), observe):
            for batch in batches.take(loader, self.sample_size):
                present = batches.size(batch)
                self._try_loss(batch, "batches")
                seen += present
        for name, gram in grams.items():
            if not gram.energy < float("inf"):
                raise CuberError(f"task {self.task}: layer '{name}' sees inputs that are not finite")
        return grams

    def _threshold(self, name: str) -> float:
        first = for_layer(self.threshold, name, list(self.layers), "threshold")
        return first + self.threshold_step * self.tasks

    def _samples(self, name: str) -> int:
        return for_layer(self.samples, name, list(self.layers), "samples")

    @property
    def sample_size(self) -> int:
        given = self.samples.values() if isinstance(self.samples, Mapping) else self.samples
        return max(given, default=1) if isinstance(given, Iterable) else given

    def _warn_of_drift(self) -> None:
        """Weights that somebody moved past the wrapped optimizer are worth a word."""
        for name, layer in self.layers.items():
            moved = self.moved(name)[:, self._protected_columns(name, at_start=True)]
            share = float(moved.norm()) / max(self._held[name].size, 1e-30)
            rounding = 4 * torch.finfo(layer.parameter.dtype).eps
            if share > max(NOTICEABLE_DRIFT, rounding):
                warnings.warn(
                    f"layer '{name}' moved by {share:.1%} in directions that old tasks need: were its weights changed "
                    "by anything but the wrapped optimizer?",
                    CuberWarning,
                    stacklevel=4,
                )

    # What is remembered

    def _state(self) -> dict[str, Any]:
        return super()._state() | {
            "memory": {name: {"basis": pool.basis, "owners": pool.owners} for name, pool in self.memory.items()},
            "regimes": [
                {
                    name: {task: dataclasses.asdict(regime) for task, regime in by_task.items()}
                    for name, by_task in regimes.items()
                }
                for regimes in self.regimes
            ],
            "steps": self._steps,
            "held": {name: held.state() for name, held in self._held.items()} if self.task is not None else {},
        }

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.memory = {
            name: Pool(pool["basis"].to(self.device), pool["owners"].to(self.device))
            for name, pool in state["memory"].items()
        }
        self.regimes = [
            {
                name: {int(task): Regime(**regime) for task, regime in by_task.items()}
                for name, by_task in regimes.items()
            }
            for regimes in state["regimes"]
        ]
        self._steps = state["steps"]
        self._held = {name: self._held_as(name, kept) for name, kept in state["held"].items()}
        for name in self._held:
            self._protect(name)

    def _held_as(self, name: str, kept: dict[str, Any]) -> Held | PartlyHeld:
        """From a state dict, whose tensors may be elsewhere."""
        pool = self.memory[name]
        kept = {key: part.to(self.device) if isinstance(part, Tensor) else part for key, part in kept.items()}
        if "along" in kept:
            return Held(pool.basis, **kept)
        return PartlyHeld(pool.basis, free=pool.columns(~self._protected_columns(name, at_start=True)), **kept)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.task is not None:  # layers leave behind what held them
            for name in self._held:
                self._protect(name)

    def memory_bytes(self) -> dict[str, int]:
        bases = sum(pool.basis.nbytes + pool.owners.nbytes for pool in self.memory.values())
        return {"bases": bases, **super().memory_bytes()}

    def _describe(self) -> list[str]:
        lines = [
            f"{name}: {self.memory[name].size} of {layer.dimension} directions protected"
            for name, layer in self.layers.items()
        ]
        return lines + super()._describe()
