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
from cuber.subspace import NO_FORGETTING, Regime, Scaling, decide_regimes, projection_ratios


@dataclass(eq=False, repr=False)
class TRGP(GPM):
    """Reuse the weights of the nearest old tasks, scaled, layer by layer."""

    eps1: float = setting(0.5, "share of the gradient that must lie in an old task's subspace (above 1: GPM)", low=0)
    selected: int = setting(2, "how many old tasks a layer may reuse", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scalings: list[dict[str, dict[int, Tensor]]] = []
        """Task -> layer -> old task -> A."""
        self._learning: dict[str, dict[int, Scaling]] = {}

    # The algorithm

    def _start(self) -> None:
        super()._start()
        self._learning = {
            name: {
                task: Scaling.identity(self.memory[name].basis_of(task), like=layer.parameter)
                for task, regime in self.regimes[-1][name].items()
                if regime.number != NO_FORGETTING
            }
            for name, layer in self.layers.items()
        }
        for name, layer in self.layers.items():
            layer.scalings = list(self._learning[name].values())

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
                name: {task: scaling.matrix.detach().clone() for task, scaling in by_task.items()}
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
            for other, matrix in self.scalings[task].get(name, {}).items():
                yield Scaling(self.memory[name].basis_of(other), nn.Parameter(matrix, requires_grad=False))

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
            "scalings": self.scalings,
            "learning": {
                name: {task: scaling.matrix.detach() for task, scaling in by_task.items()}
                for name, by_task in learning.items()
            },
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.scalings = [
            {
                name: {int(task): matrix.to(self.device) for task, matrix in by_task.items()}
                for name, by_task in scalings.items()
            }
            for scalings in state["scalings"]
        ]
        super()._restore(state)
        self._learning = {}
        for name, by_task in state["learning"].items():
            like = self.layers[name].parameter
            self._learning[name] = {}
            for task, matrix in by_task.items():
                scaling = Scaling.identity(self.memory[name].basis_of(int(task)), like=like)
                scaling.matrix.data.copy_(matrix)
                self._learning[name][int(task)] = scaling

    def memory_bytes(self) -> dict[str, int]:
        matrices = (a for by_layer in self.scalings for by_task in by_layer.values() for a in by_task.values())
        return {"scalings": sum(tensor.nbytes for tensor in matrices), **super().memory_bytes()}
