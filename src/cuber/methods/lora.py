"""Low-rank adapters in what old tasks leave free (the idea of InfLoRA, Liang and Li, 2024), with CUBER's regimes 1, 2.

The weights of the model are frozen. Task t adds to each adapted layer

    W  <-  W + s B_t A_t

where the rows of ``A_t`` (r x in) are orthonormal, orthogonal to the input subspaces of all old tasks, and frozen, and
``B_t`` (out x r) is trained. So the outputs for old inputs stay, whatever the optimizer does to ``B_t``, and one sum of
all adapters serves all tasks. Where a new task's first gradient lies in the subspace of old tasks (sufficient
projection, definition 1), the task may reuse it as in TRGP: by a second adapter whose rows are in the old subspace, and
which is active for this task alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.settings import PerLayer, setting
from cuber.errors import CuberError, CuberWarning
from cuber.methods.adapted import AdapterMethod, private, shared
from cuber.subspace import BACKWARD_TRANSFER, FORWARD_TRANSFER, Gram
from cuber.subspace.free import ChangeBudget, directions_within, energy_outside, free_directions, output_energy

FIRST_SAMPLES = 256
"""Samples that the rows of a new task's adapters are computed from."""


@dataclass(eq=False, repr=False)
class LoRA(AdapterMethod):
    """Learn each task by a low-rank adapter that leaves the outputs of old tasks as they are.

    Args:
        model: any ``nn.Module``, for example one of transformers; its linear layers become those of peft.
        targets: names of the layers to adapt, or ends of names, such as ``["query", "value"]``; None: all linear ones.
        output_layers: modules of which every task trains a copy of its own; None: ``classifier`` and ``score``, where
            the model has them. The heads of a :class:`MultiHead` need not be named.
    """

    remembered: ClassVar[dict[str, Any]] = {"budgets": dict[str, ChangeBudget]}

    rank: int = setting(8, "rows of a task's adapter in each layer", low=1)
    tolerance: float = setting(
        1e-3, "how much all later tasks together may change a layer's outputs for old inputs, relative to them", low=0
    )
    threshold: PerLayer = setting(
        0.999, "fraction of the input energy that a task's subspace must hold", low=0, high=1, per_layer=True
    )
    threshold_step: float = setting(0.0, "what each further task adds to the threshold", low=0, high=1)
    variance: PerLayer = setting(
        0.0,
        "fraction of the variance that it must hold besides; ``tolerance`` bounds the rest",
        low=0,
        high=1,
        per_layer=True,
    )
    samples: PerLayer = setting(5000, "training samples that the bases are computed from", low=1, per_layer=True)
    eps1: float = setting(
        0.5, "share of the gradient that must lie in an old task's subspace (above 1: no reuse)", low=0
    )
    selected: int = setting(2, "how many old tasks a layer may reuse", low=0)

    def __post_init__(self) -> None:
        self.budgets: dict[str, ChangeBudget] = {}
        """Layer name -> how much its outputs for old inputs may still change."""
        self.bounds: dict[str, float] = {}
        """Layer name -> the largest norm of the present task's update."""
        if self.max_rank:
            raise CuberError("LoRA takes no max_rank: outputs for old inputs would change with each direction dropped")
        super().__post_init__()

    def take(self, loader: Iterable[Batch]) -> list[Batch]:
        return batches.take(loader, FIRST_SAMPLES)

    def on_task_begin(self) -> None:
        """Decide the regimes, and draw the rows of the task's adapters: in free directions, and in reused ones."""
        gradients = self.mean_gradients(self.sample) if self.tasks and self.selected else {}
        free: dict[str, Tensor] = {}
        reused: dict[str, Tensor] = {}
        for name, gram in self.input_grams(self.sample).items():
            memory = self.memory[name]
            memory.regimes.append(self.decide_regimes(memory, gradients.get(name)))
            free[name] = free_directions(gram, memory.basis, self.rank)
            reused[name] = self.reused_directions(name, gram)
        for memory in self.memory.values():  # of layers that the task does not reach
            memory.regimes += [{}] * (self.tasks + 1 - len(memory.regimes))
        self._report_lack(free, reused)
        for adapter, directions in {shared(self.tasks): free, private(self.tasks): reused}.items():
            if ranks := {name: rows.shape[1] for name, rows in directions.items() if rows.shape[1]}:
                self.adapters.add(adapter, ranks)
                for name in ranks:
                    self.adapters.set_rows(adapter, name, directions[name].mT)
        self.open_task(self.tasks)

    def reused_directions(self, name: str, gram: Gram) -> Tensor:
        """Return where the new task uses most of the subspaces of the old tasks that it reuses, d x k."""
        memory, layer = self.memory[name], self.layers[name]
        columns = memory.owners[memory.in_regime(FORWARD_TRANSFER, BACKWARD_TRANSFER)].any(0)
        # Both up-projections together have at most rank * (in + out) numbers.
        count = min(self.rank, self.rank * layer.dimension // layer.outputs)
        return directions_within(gram, memory.basis[:, columns], count)

    def _report_lack(self, free: dict[str, Tensor], reused: dict[str, Tensor]) -> None:
        few = [name for name, rows in free.items() if rows.shape[1] < self.rank]
        if few and not any(rows.shape[1] for rows in [*free.values(), *reused.values()]):
            raise CuberError(
                f"task {self.tasks}: old tasks leave no free direction in any adapted layer, so no adapter can be "
                "added: lower threshold, reuse old subspaces (eps1 below 1), or adapt wider layers (targets)"
            )
        if few:
            warnings.warn(
                f"task {self.tasks}: {len(few)} of {len(free)} adapted layers have fewer than rank={self.rank} "
                f"free directions, first '{few[0]}' with {free[few[0]].shape[1]}; the adapter has as many rows "
                "as there are: lower threshold= or rank=, or adapt fewer layers (targets=)",
                CuberWarning,
                stacklevel=5,
            )

    def open_task(self, task: int) -> None:
        """Train the up-projections of a task, as far as its update may grow."""
        super().open_task(task)
        ranks = self.adapters.ranks.get(shared(task), {})
        self.bounds = {name: self._budget(name).largest_norm(self.tolerance) for name in ranks}

    def _budget(self, name: str) -> ChangeBudget:
        return self.budgets.setdefault(name, ChangeBudget([0.0] * self.tasks, [0.0] * self.tasks))

    def before_step(self, optimizer: Optimizer) -> None:
        """Nothing: no step can move along a protected direction."""

    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        return None

    @torch.no_grad()
    def after_step(self, optimizer: Optimizer) -> None:
        """Shorten updates that could change outputs for old inputs by more than the tolerance."""
        for name, bound in self.bounds.items():
            if bound < math.inf:
                up = self.adapters.up(shared(self.tasks), name)
                if (norm := self._norm(up, at_least=bound)) > bound:
                    up.mul_(bound / norm)

    def _norm(self, up: Tensor, *, at_least: float = 0.0) -> float:
        """Return the largest singular value of ``s B A``, or a cheaper upper bound that is below ``at_least``."""
        bound = self.scale * float(up.norm())
        return bound if bound < at_least else self.scale * float(torch.linalg.matrix_norm(up.float(), 2))

    def on_epoch_end(self) -> None:
        """Nothing: no old task is in regime 3."""

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        """Remember the subspace of the task's inputs, and how much later tasks may change its outputs."""
        grams = self.input_grams(loader)
        for name, memory in self.memory.items():
            budget, gram = self._budget(name), grams.get(name)
            if name in self.bounds:
                budget.spend(self._norm(self.adapters.up(shared(self.tasks), name).detach()))
            self.extend_pool(name, gram)
            outside, outputs = 0.0, 0.0
            if gram is not None and gram.count:
                outside = energy_outside(gram, memory.basis)
                outputs = output_energy(gram, memory.basis, self.weight(name))
            budget.add_task(outside, outputs)
            for entries in (memory.energies, memory.gradients, memory.scalings):
                entries.append(None)
            memory.end_task(0)

    def on_task_left(self) -> None:
        super().on_task_left()
        self.bounds = {}
