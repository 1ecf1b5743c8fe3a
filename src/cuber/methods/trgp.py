"""Trust Region Gradient Projection (Lin et al., 2022): GPM, and the new task may read what old ones have learnt.

Where a new task's first gradient lies in an old task's subspace, the old weights there are of use to it: it learns a
scaling of them, ``W~ = W + (W B) A B'``, while W itself stays as protected as in GPM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.core.batches import Batch
from cuber.core.settings import setting
from cuber.layers import ProjectedProduct
from cuber.methods.gpm import GPM, Regimes
from cuber.subspace import (
    NO_FORGETTING,
    LearnedScaling,
    PartlyHeld,
    Regime,
    Scaling,
    decide_regimes,
    projection_ratios,
    supports_of,
)

MOST = 0.9
"""From this share of a pool's columns on, a scaling is about all of them."""


@dataclass(eq=False, repr=False)
class TRGP(GPM):
    """Reuse the weights of the nearest old tasks, scaled, layer by layer."""

    eps1: float = setting(0.5, "share of the gradient that must lie in an old task's subspace (above 1: GPM)", low=0)
    selected: int = setting(2, "how many old tasks a layer may reuse", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scalings: list[dict[str, LearnedScaling]] = []
        """Task -> layer -> what it has learnt to make of the old tasks' weights."""
        self._learning: dict[str, Scaling] = {}

    # The algorithm

    def _start(self) -> None:
        super()._start()
        self._learning = {name: self._new_scaling(name) for name in self.layers if self._selected(name)}
        for name, layer in self.layers.items():
            layer.scaling = self._learning.get(name)

    def _selected(self, name: str) -> list[int]:
        """The old tasks whose weights the present one reuses here."""
        return [task for task, regime in self.regimes[-1][name].items() if regime.number != NO_FORGETTING]

    def _protect(self, name: str) -> None:
        super()._protect(name)
        layer, projector, held = self.layers[name], self._projectors[name], self._held[name]
        layer.held = held
        moves = isinstance(held, PartlyHeld)
        if projector.rank or moves:
            free = ~self._protected_columns(name, at_start=True)
            along = held.free if moves else None
            layer.product = ProjectedProduct(projector, along, self._covered(name, free))

    def _covered(self, name: str, free: Tensor) -> Tensor | None:
        """Which columns of the scaling are protected, if all that are protected are among them and none fell."""
        if not self._selected(name):
            return None
        protected, columns = self._protected_columns(name), self._scaled_columns(self._selected(name), name)
        return None if bool((protected & (free | ~columns)).any()) else protected[columns]

    def _leave_task(self) -> None:
        super()._leave_task()
        for layer in self.layers.values():
            layer.held = None

    def _new_scaling(self, name: str) -> Scaling:
        """For the present task to learn."""
        tasks = self._selected(name)
        columns = self._scaled_columns(tasks, name)
        basis, owned = self._basis_of(tasks, name, columns)
        free = ~self._protected_columns(name, at_start=True)[columns]
        supports = supports_of(self.layers[name].matrix().detach(), basis, owned, free)
        return Scaling.identity(basis, owned, supports, like=self.layers[name].parameter)

    def _known_scaling(self, learnt: LearnedScaling, name: str) -> Scaling:
        """As it was learnt."""
        like, pool = self.layers[name].parameter, self.memory[name]
        columns, count = pool.owners[learnt.tasks].any(0), learnt.matrix.shape[1]
        if int(columns.sum()) != count:  # it was the whole pool, which may have grown since
            columns = torch.arange(pool.size, device=columns.device) < count
        basis, owned = self._basis_of(learnt.tasks, name, columns)
        scaling = Scaling.identity(basis, owned, learnt.supports, like=like)
        scaling.matrix = nn.Parameter(learnt.matrix.to(like), requires_grad=False)
        return scaling

    def _scaled_columns(self, tasks: list[int], name: str) -> Tensor:
        """The columns that any of these tasks owns; all, if that is most of them: what is known along all is of use."""
        columns = self.memory[name].owners[tasks].any(0)
        return torch.ones_like(columns) if columns.sum() >= MOST * len(columns) else columns

    def _basis_of(self, tasks: list[int], name: str, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Some columns of the pool, and which of these tasks owns which of them."""
        pool = self.memory[name]
        return pool.columns(columns), pool.owners[tasks][:, columns]

    def correlate(self) -> Regimes:
        if self.tasks == 0:
            return super().correlate()
        gradients = self.mean_gradients(self._sample)
        return {name: self._correlate_layer(name, gradients.get(name)) for name in self.layers}

    def _correlate_layer(self, name: str, gradient: Tensor | None) -> dict[int, Regime]:
        if gradient is None:  # the new task does not come by here
            return {task: Regime() for task in range(self.tasks)}
        return decide_regimes(
            projection_ratios(gradient, self.memory[name]),
            lambda task: self.positively_correlated(task, name, gradient),
            eps1=self.eps1,
            most=self.selected,
        )

    def positively_correlated(self, task: int, name: str, gradient: Tensor) -> tuple[bool, float | None]:
        """Whether an old task would gain from this gradient, and by which cosine: TRGP does not ask."""
        return False, None

    def columns_read(self, task: int, name: str) -> Tensor:
        # A task that scales W B_j reads W along all of B_j, its own input subspace or not.
        read = super().columns_read(task, name)
        for other in self.scalings[task][name].tasks if name in self.scalings[task] else []:
            read = read | super().columns_read(other, name)
        return read

    def _finish(self, loader: Iterable[Batch]) -> None:
        super()._finish(loader)
        self.scalings.append(self._learnt())

    def _learnt(self) -> dict[str, LearnedScaling]:
        """What the present task has learnt so far."""
        return {name: scaling.learnt(self._selected(name)) for name, scaling in self._learning.items()}

    # How the model is seen, and what trains

    def _show(self, task: int | None) -> None:
        super()._show(task)
        for name, layer in self.layers.items():
            layer.scaling = self._scaling_of(task, name)

    def _scaling_of(self, task: int | None, name: str) -> Scaling | None:
        if task is not None and task == self.task:
            return self._learning.get(name)
        if task is not None and task < len(self.scalings) and name in self.scalings[task]:
            return self._known_scaling(self.scalings[task][name], name)
        return None

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from super().named_parameters()
        if self.task is not None:
            for name, scaling in self._learning.items():
                yield f"{name}.scaling.{'+'.join(map(str, self._selected(name)))}", scaling.matrix

    def _check_optimizer(self, optimizer: Optimizer) -> None:
        super()._check_optimizer(optimizer)
        self._require_held(optimizer, ".scaling.", "scalings")

    # What is remembered

    def _state(self) -> dict[str, Any]:
        learning = self._learnt() if self.task is not None else {}
        return super()._state() | {
            "scalings": [
                {name: vars(learnt).copy() for name, learnt in by_layer.items()} for by_layer in self.scalings
            ],
            "learning": {name: vars(learnt) for name, learnt in learning.items()},
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.scalings = [self._moved_here(by_layer) for by_layer in state["scalings"]]
        super()._restore(state)
        self._learning = {}
        for name, learnt in self._moved_here(state["learning"]).items():
            self._learning[name] = self._known_scaling(learnt, name)
            self._learning[name].matrix.requires_grad_()

    def _moved_here(self, by_layer: dict[str, dict[str, Any]]) -> dict[str, LearnedScaling]:
        """From a state dict, whose tensors may be elsewhere."""
        return {
            name: LearnedScaling(
                list(kept["tasks"]),
                kept["matrix"].to(self.device, copy=True),
                [support.to(self.device) for support in kept["supports"]],
            )
            for name, kept in by_layer.items()
        }

    def memory_bytes(self) -> dict[str, int]:
        learnt = (learnt for by_layer in self.scalings for learnt in by_layer.values())
        return {"scalings": sum(one.nbytes for one in learnt), **super().memory_bytes()}
