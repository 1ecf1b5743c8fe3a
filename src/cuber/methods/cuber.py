"""CUBER (Lin et al., 2022): TRGP, and old tasks that would gain from the new one's gradient may change.

Where the new task's gradient lies in an old task's subspace *and* agrees with the gradient that the old task ended
with, the weights may move there, held back by a penalty, for as long as the agreement lasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cuber.core.batches import Batch
from cuber.core.settings import setting
from cuber.errors import CuberError
from cuber.layers import ProtectedLayer
from cuber.methods.trgp import TRGP
from cuber.subspace import (
    BACKWARD_TRANSFER,
    Gram,
    NormRestraint,
    PartlyHeld,
    PrunedGradient,
    Restraint,
    SquaredRestraint,
    energy_weights,
)

PAPER = {"eps1": 0.5, "eps2": 0.0, "lam": 1.0, "penalty": "norm", "check": "epoch"}
"""The paper's settings, but for ``check``: its algorithm checks at every step. ``CUBER(model, **PAPER)``."""


@dataclass(eq=False, repr=False)
class CUBER(TRGP):
    """Let new tasks improve old ones where their gradients agree."""

    eps2: float = setting(
        -0.1, "cosine between old and new gradient from which an old task may change (above 1: TRGP)", low=-1
    )
    lam: float = setting(3.0, "strength of the penalty on change in the subspace of a changing task", low=0)
    penalty: str = setting(
        "energy",
        "the penalty: norm of the change (as printed), its square, or the square weighted by the old inputs' energy",
        choices=("norm", "squared", "energy"),
    )
    check: str = setting(
        "epoch",
        "when agreement is checked: on a fixed sample after each epoch, or on each step's batch",
        choices=("epoch", "step"),
    )
    keep: float = setting(0.1, "fraction of an old task's gradient entries that is kept", low=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gradients: list[dict[str, PrunedGradient]] = []
        """Task -> layer -> the gradient that the task ended with."""
        self.energies: list[dict[str, Tensor]] = []
        """Task -> layer -> how much each direction of its subspace matters to it (penalty "energy")."""
        self._restraints: dict[str, Restraint | None] = {}
        self._waiting: dict[str, set[int]] = {}
        """Layer -> the optimizers (by id) whose steps are still to come with gradients that have been pulled."""

    # The algorithm

    def positively_correlated(self, task: int, name: str, gradient: Tensor) -> tuple[bool, float | None]:
        if name not in self.gradients[task] or self.gradients[task][name].norm == 0:
            return False, None
        cosine = self.gradients[task][name].cosine(gradient)
        return cosine >= self.eps2, cosine

    def before_step(self, optimizer: Optimizer) -> None:
        if self.check == "step":
            for layer in self._layers_of(optimizer):
                self._let_fall(layer.name, layer.gradient())
        super().before_step(optimizer)
        for layer, held, restraint, strength in self._restrained(optimizer):
            if not self._pulled_before(layer, optimizer):
                layer.add_gradient(restraint.pull(layer.moved(held)), held.free, strength)

    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        values = [
            strength * restraint.value(layer.moved(held))
            for layer, held, restraint, strength in self._restrained(optimizer)
        ]
        return torch.stack(values).sum() if values else None

    def _restrained(self, optimizer: Optimizer) -> Iterator[tuple[ProtectedLayer, PartlyHeld, Restraint, float]]:
        """The layers that are pulled back, by what, and how strongly."""
        for layer in self._layers_of(optimizer):
            restraint, held = self._restraints.get(layer.name), layer.held
            if restraint and isinstance(held, PartlyHeld) and self.lam:
                yield layer, held, restraint, self._strength(layer, optimizer, restraint.tasks)

    def after_step(self, optimizer: Optimizer) -> None:
        if self._steps_straight(optimizer):
            for layer in self._layers_of(optimizer):
                layer.carry(-float(optimizer.param_groups[0]["lr"]))
        super().after_step(optimizer)

    def _pulled_before(self, layer: ProtectedLayer, optimizer: Optimizer) -> bool:
        """Whether the gradients were pulled when another optimizer began its step, which has a part of the layer."""
        if len(self._wrapped) < 2:
            return False
        if id(optimizer) in (waiting := self._waiting.setdefault(layer.name, set())):
            waiting.remove(id(optimizer))
            return True
        others = (other for other in self._wrapped if other is not optimizer)
        self._waiting[layer.name] = {id(other) for other in others if layer in self._layers_of(other)}
        return False

    def _on_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        replaced = super()._on_step(optimizer, args, kwargs)
        if replaced is not None:  # a closure makes gradients of its own, which nobody has pulled
            self._waiting = {}
        return replaced

    def _strength(self, layer: ProtectedLayer, optimizer: Optimizer, tasks: int) -> float:
        """``lam``, or less where a step would take the weights past the point that the penalty pulls them to."""
        if self.penalty == "norm":
            return self.lam
        ours = set(map(id, layer.parameters))
        rates = [
            float(group.get("lr", 0)) for group in optimizer.param_groups if any(id(p) in ours for p in group["params"])
        ]
        return min(self.lam, 1 / max(2 * max(rates) * tasks, 1e-12))

    def end_epoch(self) -> None:
        super().end_epoch()
        self._waiting = {}
        if self.check == "epoch" and any(map(self._changing, self.layers)):
            for name, gradient in self.mean_gradients(self._sample).items():
                self._let_fall(name, gradient)

    def _finish(self, loader: Iterable[Batch]) -> None:
        self._require_trained("end_task")
        gradients = self.mean_gradients(loader)
        super()._finish(loader)
        self.gradients.append({name: PrunedGradient.of(g, self.keep) for name, g in gradients.items()})

    def _extend(self, grams: dict[str, Gram]) -> None:
        super()._extend(grams)
        if self.penalty == "energy":
            self.energies.append(
                {name: energy_weights(gram, self.memory[name].basis_of(self.tasks)) for name, gram in grams.items()}
            )

    def _changing(self, name: str) -> list[int]:
        """The old tasks that are in regime 3 here."""
        return [task for task, regime in self.regimes[-1][name].items() if regime.number == BACKWARD_TRANSFER]

    def _protect(self, name: str) -> None:
        super()._protect(name)
        if self.check == "step":
            self.layers[name].product = None  # agreement is asked of the gradient as it comes, before any projection
        self._restraints[name] = self._restraint(name)

    def _restraint(self, name: str) -> Restraint | None:
        """What holds the weights back along the columns that were free when the task began.

        Along no others can anything have moved. What has become protected since stays where it is.
        """
        pool, changing = self.memory[name], self._changing(name)
        free = ~self._protected_columns(name, at_start=True)
        if not changing or not bool(free.any()):
            return None
        owned, movable = pool.owners[changing][:, free], ~self._protected_columns(name)[free]
        if self.penalty == "norm":
            return NormRestraint(owned, movable, pool.basis)
        energies = [self._energy(name, task, free) for task in changing] if self.penalty == "energy" else None
        return SquaredRestraint(owned, movable, pool.basis, energies)

    def _energy(self, name: str, task: int, free: Tensor) -> Tensor:
        """How much an old task's free directions matter to it."""
        kept = free[self.memory[name].owners[task]]
        energies = self.energies[task][name].to(kept.device)  # the model may have been moved
        return energies[kept][:, kept]

    def _let_fall(self, name: str, gradient: Tensor) -> None:
        """Old tasks that no longer agree go to regime 2 for the rest of the task; what has moved stays moved."""
        for task in self._changing(name):
            if not self.positively_correlated(task, name, gradient)[0]:
                self.regimes[-1][name][task].fall(self.epoch + (self.check == "step"))
                held = self._held[name]
                if isinstance(held, PartlyHeld):
                    held.reference = self.layers[name].matrix().detach().clone()
                self._protect(name)

    # What is remembered

    def _state(self) -> dict[str, Any]:
        return super()._state() | {
            "gradients": [
                {name: vars(gradient).copy() for name, gradient in by_layer.items()} for by_layer in self.gradients
            ],
            "energies": self.energies,
            "moved": self._carried(),
        }

    def _carried(self) -> dict[str, Tensor]:
        """How far each layer has moved, where that has been carried along."""
        return {name: moved for name, layer in self.layers.items() if (moved := layer.carried()) is not None}

    def _recall(self, carried: dict[str, Tensor]) -> None:
        for name, moved in carried.items():
            self.layers[name].recall(moved.to(self.device))

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        if self.penalty == "energy" and len(state["energies"]) < state["tasks"]:
            raise CuberError("this state was saved by a CUBER with another penalty than 'energy': choose the same")

    def _restore(self, state: dict[str, Any]) -> None:
        self.gradients = [
            {name: PrunedGradient(**fields) for name, fields in by_layer.items()} for by_layer in state["gradients"]
        ]
        self.energies = [
            {name: weights.to(self.device) for name, weights in by_layer.items()} for by_layer in state["energies"]
        ]
        super()._restore(state)
        self._recall(state["moved"])

    def __getstate__(self) -> dict[str, Any]:
        # Layers leave behind how far they have been carried; found anew, it would differ in the last bits.
        return {**super().__getstate__(), "_carried": self._carried()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        carried = state.pop("_carried", {})
        super().__setstate__(state)
        self._recall(carried)

    def memory_bytes(self) -> dict[str, int]:
        gradients = (gradient for by_layer in self.gradients for gradient in by_layer.values())
        energies = (weights for by_layer in self.energies for weights in by_layer.values())
        return {
            "gradients": sum(g.places.nbytes + g.values.nbytes + 8 for g in gradients),
            "energies": sum(tensor.nbytes for tensor in energies),
            **super().memory_bytes(),
        }
