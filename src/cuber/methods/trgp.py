"""Trust Region Gradient Projection (Lin et al., 2022): GPM, and the new task may read what old ones have learnt.

Where a new task's first gradient lies in an old task's subspace, the old weights there are of use to it: it learns a
scaling of them, ``W~ = W + (W B) A B'``, while W itself stays as protected as in GPM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.batches import Batch
from cuber.methods.gpm import GPM, Regimes
from cuber.methods.settings import setting
from cuber.subspace import (
    NO_FORGETTING,
    Held,
    LearntScaling,
    Regime,
    Scaling,
    decide_regimes,
    projection_ratios,
    support_of,
)


@dataclass(eq=False, repr=False)
class TRGP(GPM):
    """Reuse the weights of the nearest old tasks, scaled, layer by layer."""

    eps1: float = setting(0.5, "share of the gradient that must lie in an old task's subspace (above 1: GPM)", low=0)
    selected: int = setting(2, "how many old tasks a layer may reuse", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scalings: list[dict[str, dict[int, LearntScaling]]] = []
        """Task -> layer -> old task -> A, in factors."""
        self._learning: dict[str, dict[int, Scaling]] = {}

    # The algorithm

    def _start(self) -> None:
        super()._start()
        self._learning = {
            name: {
                task: self._new_scaling(task, name)
                for task, regime in self.regimes[-1][name].items()
                if regime.number != NO_FORGETTING
            }
            for name in self.layers
        }
        for name, layer in self.layers.items():
            layer.scalings = list(self._learning[name].values())

    def _protect(self, name: str) -> None:
        super()._protect(name)
        free = self.memory[name].basis[:, ~self._protected_columns(name, at_start=True)]
        self.layers[name].held = Held(self._anchors[name], free)

    def _leave_task(self) -> None:
        super()._leave_task()
        for layer in self.layers.values():
            layer.held = None

    def _new_scaling(self, task: int, name: str) -> Scaling:
        """Of an old task's subspace, for the present task to learn."""
        basis, owned = self.memory[name].basis_of(task), self.memory[name].owners[task]
        free = ~self._protected_columns(name, at_start=True)
        support = support_of(self._anchors[name], basis, free[owned])
        return self._scaling(task, name, support)

    def _scaling(self, task: int, name: str, support: Tensor | None) -> Scaling:
        pool = self.memory[name]
        return Scaling.identity(pool.basis, like=self.layers[name].parameter, support=support, owned=pool.owners[task])

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
        for other in self.scalings[task].get(name, {}):
            read = read | super().columns_read(other, name)
        return read

    def _finish(self, loader: Iterable[Batch]) -> None:
        super()._finish(loader)
        self.scalings.append(
            {
                name: {task: scaling.learnt() for task, scaling in by_task.items()}
                for name, by_task in self._learning.items()
                if by_task
            }
        )

    # How the model is seen, and what trains

    def _show(self, task: int | None) -> None:
        super()._show(task)
        for name, layer in self.layers.items():
            layer.scalings = list(self._scalings_of(task, name))

    def _scalings_of(self, task: int | None, name: str) -> Iterator[Scaling]:
        if task is not None and task == self.task:
            yield from self._learning.get(name, {}).values()
        elif task is not None and task < len(self.scalings):
            for other, learnt in self.scalings[task].get(name, {}).items():
                scaling = self._scaling(other, name, learnt.support)
                scaling.matrix = nn.Parameter(learnt.matrix, requires_grad=False)
                yield scaling

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from super().named_parameters()
        if self.task is not None:
            for name, by_task in self._learning.items():
                for task, scaling in by_task.items():
                    yield f"{name}.scaling.{task}", scaling.matrix

    def _check_optimizer(self, optimizer: Optimizer) -> None:
        super()._check_optimizer(optimizer)
        self._require_held(optimizer, ".scaling.", "scalings")

    # What is remembered

    def _state(self) -> dict[str, Any]:
        learning = self._learning if self.task is not None else {}
        return super()._state() | {
            "scalings": [
                {name: {task: vars(a).copy() for task, a in by_task.items()} for name, by_task in by_layer.items()}
                for by_layer in self.scalings
            ],
            "learning": {
                name: {task: vars(scaling.learnt()) for task, scaling in by_task.items()}
                for name, by_task in learning.items()
            },
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.scalings = [
            {name: self._learnt(by_task) for name, by_task in by_layer.items()} for by_layer in state["scalings"]
        ]
        super()._restore(state)
        self._learning = {}
        for name, by_task in state["learning"].items():
            self._learning[name] = {}
            for task, learnt in self._learnt(by_task).items():
                self._learning[name][task] = self._scaling(task, name, learnt.support)
                self._learning[name][task].matrix.data.copy_(learnt.matrix)

    def _learnt(self, by_task: dict[Any, dict[str, Tensor | None]]) -> dict[int, LearntScaling]:
        return {
            int(task): LearntScaling(**{key: t if t is None else t.to(self.device) for key, t in factors.items()})  # type: ignore[arg-type]
            for task, factors in by_task.items()
        }

    def memory_bytes(self) -> dict[str, int]:
        learnt = (a for by_layer in self.scalings for by_task in by_layer.values() for a in by_task.values())
        return {"scalings": sum(a.nbytes for a in learnt), **super().memory_bytes()}
