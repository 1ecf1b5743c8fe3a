"""Low-rank adapters in what old tasks leave free (the idea of InfLoRA, Liang and Li, 2024), with CUBER's regimes.

The weights of the model are frozen. Task t adds to each adapted layer

    W  <-  W + s B_t A_t

where the rows of ``A_t`` (r x in) are orthonormal, orthogonal to the input subspaces of all old tasks, and frozen, and
``B_t`` (out x r) is trained. So the outputs for old inputs stay, whatever the optimizer does to ``B_t``, and one sum of
all adapters serves all tasks (regime 1). Where a new task's first gradient lies in the subspace of an old task
(sufficient projection, definition 1), the task may reuse it as in TRGP (regime 2): by a second adapter whose rows are
in the old subspace, and which is active for this task alone. Where it also agrees with the old task's last gradient
(positive correlation, definition 2), ``A_t`` gets rows in the old subspace, too (regime 3): the old task changes, held
back by CUBER's penalty, until the gradients disagree.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from cuber.core import batches, coverage
from cuber.core.batches import Batch
from cuber.core.optimizer_hooks import layers_with_rates
from cuber.core.settings import PerLayer, setting
from cuber.errors import CuberError, CuberWarning
from cuber.layers import ProtectedLayer
from cuber.methods.adapted import AdapterMethod, private, shared
from cuber.methods.adapter_update import AdapterUpdate, MovingRows
from cuber.subspace import BACKWARD_TRANSFER, Gram, Penalty, make_penalty
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
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.
        mask: function of a batch that says which positions are real, or None; default: ``attention_mask``.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))  # usually a pretrained transformer
    >>> learner = LoRA(model, rank=2, targets=["0"], output_layers=["2"])
    >>> learner.tasks, learner.rank
    (0, 2)
    """

    remembered: ClassVar[dict[str, Any]] = {"budgets": dict[str, ChangeBudget]}
    in_task: ClassVar[dict[str, Any]] = {"moving": dict[str, MovingRows]}

    penalty = "energy"  # without annotation: the only one here

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
    eps2: float = setting(
        2.0, "cosine of old and new gradient above which an old task may change (above 1: none)", low=-1
    )
    lam: float = setting(3.0, "strength of the penalty on change in the subspace of a changing task", low=0)
    keep: float = setting(0.1, "fraction of an old task's gradient entries that is kept", low=0, high=1)

    def __post_init__(self) -> None:
        self.budgets: dict[str, ChangeBudget] = {}
        """Layer name -> how much its outputs for old inputs may still change."""
        self.updates: dict[str, AdapterUpdate] = {}
        """Layer name -> the present task's update of it, for all tasks."""
        self.moving: dict[str, MovingRows] = {}
        """Layer name -> rows of this update in subspaces of old tasks in regime 3."""
        self._without_adapter: set[str] = set()  # layers that a warning has named
        if self.max_rank:
            raise CuberError("LoRA takes no max_rank: outputs for old inputs would change with each direction dropped")
        super().__post_init__()

    def take(self, loader: Iterable[Batch]) -> list[Batch]:
        return batches.take(loader, FIRST_SAMPLES)

    def on_task_begin(self) -> None:
        """Decide the regimes, and draw the rows of the task's adapters: in free, in moving and in reused directions."""
        gradients = self.mean_gradients(self.sample) if self.tasks and self.selected else {}
        free: dict[str, Tensor] = {}
        moving: dict[str, Tensor] = {}
        reused: dict[str, Tensor] = {}
        grams = self.input_grams(self.sample)
        self._report_bypassed(grams)
        for name, gram in grams.items():
            memory = self.memory[name]
            memory.regimes.append(self.decide_regimes(memory, gradients.get(name)))
            free[name] = free_directions(gram, memory.basis, self.rank)
            moving[name], reused[name] = self.old_directions(name, gram)
        for memory in self.memory.values():  # of layers that the task does not reach
            memory.regimes += [{}] * (self.tasks + 1 - len(memory.regimes))
        self._report_lack(free, reused)
        for_all = {name: torch.cat([rows, moving[name]], dim=1) for name, rows in free.items()}
        for adapter, directions in {shared(self.tasks): for_all, private(self.tasks): reused}.items():
            if ranks := {name: rows.shape[1] for name, rows in directions.items() if rows.shape[1]}:
                self.adapters.add(adapter, ranks)
                for name in ranks:
                    self.adapters.set_rows(adapter, name, directions[name].mT)
        for name, rows in moving.items():
            if count := rows.shape[1]:
                free_columns = self.memory[name].basis[:, ~self.protected_columns(name)]
                up = self.adapters.up(shared(self.tasks), name)[:, -count:]
                self.moving[name] = MovingRows.of(rows, free_columns, up)
        self.open_task(self.tasks)

    def old_directions(self, name: str, gram: Gram) -> tuple[Tensor, Tensor]:
        """Return where the new task uses most of the subspaces of old tasks: that may change, that it reuses; d x k."""
        memory, layer = self.memory[name], self.layers[name]
        reused = memory.owners[memory.reused()].any(0)
        # All up-projections of a layer together have at most rank * (in + out) numbers.
        count = min(self.rank, self.rank * layer.dimension // layer.outputs)
        moving = directions_within(gram, memory.basis[:, ~memory.protected_columns()], count // 2)
        return moving, directions_within(gram, memory.basis[:, reused], count - moving.shape[1])

    def _report_bypassed(self, called: Collection[str]) -> None:
        """Warn once of each layer whose weight is used without calling it: an adapter would have no effect there."""
        # Where no targets are given, it is known that attention passes its output projection by.
        bypassed = self.reached - set(called) | (self.bypassed if self.targets is not None else set())
        new = sorted(bypassed - self._without_adapter)
        used = "whose weights the model uses without calling these layers in evaluation mode"
        advice = "choose other layers with targets="
        if not called:
            raise CuberError(f"task {self.tasks}: no adapter for {coverage.few(sorted(bypassed))}, {used}: {advice}")
        if new:
            self._without_adapter.update(new)
            warnings.warn(f"no adapter for {coverage.few(new)}, {used}: {advice}", CuberWarning, stacklevel=5)

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
        for name in self.adapters.ranks.get(shared(task), {}):
            up, moving = self.adapters.up(shared(task), name), self.moving.get(name)
            largest, largest_moving = self._budget(name).largest_norms(self.tolerance, self.improving(name))
            penalty = self.make_penalty(self.layers[name]) if moving else None
            self.updates[name] = AdapterUpdate(up, self.scale, largest, moving, largest_moving, penalty)

    def _budget(self, name: str) -> ChangeBudget:
        return self.budgets.setdefault(name, ChangeBudget.of_unreached(self.tasks))

    def improving(self, name: str) -> list[int]:
        """Return the old tasks in whose subspaces the present task began to move a layer."""
        return self.memory[name].in_regime(BACKWARD_TRANSFER, at_start=True) if name in self.moving else []

    def make_penalty(self, layer: ProtectedLayer) -> Penalty | None:
        memory = self.memory[layer.name]
        start = self.adapters.up(shared(self.tasks), layer.name).new_zeros(layer.outputs, memory.size)  # of updates
        return make_penalty(self.penalty, memory, start) if self.lam else None

    def before_step(self, optimizer: Optimizer) -> None:
        """Add the gradient of the penalty: no step can move along a protected direction."""
        for update, lr in layers_with_rates(optimizer, self.updates.values()):
            update.constrain_gradient(self.lam, lr)

    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        updates = layers_with_rates(optimizer, self.updates.values())
        values = [update.penalty_value(self.lam, lr) for update, lr in updates if update.penalty]
        return torch.stack(values).sum() if values else None

    def after_step(self, optimizer: Optimizer) -> None:
        """Shorten updates that could change old outputs by more than the tolerance, and restore held rows."""
        for update in self.updates.values():
            update.restrain()

    def constrain(self, layer: ProtectedLayer) -> None:
        """Hold rows in the subspaces of old tasks that were demoted."""
        if layer.name in self.moving:
            free = ~self.protected_columns(layer.name, at_start=True)
            movable = ~self.protected_columns(layer.name)[free]
            self.updates[layer.name].hold(movable, self.make_penalty(layer))

    def on_weights_restored(self) -> None:
        super().on_weights_restored()
        for update in self.updates.values():
            update.hold_here()

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        """Remember the task's inputs and gradient, and how much later tasks may change its outputs."""
        gradients = self.mean_gradients(loader) if self.eps2 <= 1 else {}
        grams = self.input_grams(loader)
        for name, memory in self.memory.items():
            budget, gram, gradient = self._budget(name), grams.get(name), gradients.get(name)
            if name in self.updates:
                budget.spend(*self.updates[name].norms(), self.improving(name))
            self.extend_pool(name, gram)
            outside_pool, outside_own, outputs = 0.0, 0.0, 0.0
            if gram is not None and gram.count:
                outside_pool = energy_outside(gram, memory.basis)
                outside_own = energy_outside(gram, memory.basis_of(self.tasks))
                outputs = output_energy(gram, memory.basis, self.weight(name))
            budget.add_task(outside_pool, outside_own, outputs)
            self.remember_change(memory, gram if self.eps2 <= 1 else None, gradient)
            memory.scalings.append(None)
            memory.end_task(0)

    def on_task_left(self) -> None:
        super().on_task_left()
        self.updates, self.moving = {}, {}
