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

import copy
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.core import batches, distributed
from cuber.core.batches import Batch
from cuber.core.coverage import Coverage
from cuber.core.learner import LossFunction, Method
from cuber.core.misuse import require_attached
from cuber.core.settings import PerLayer, setting
from cuber.errors import CuberError, CuberWarning
from cuber.layers import ProtectedLayer
from cuber.layers.adapters import Adapters, Ranks, adaptable, has_adapters, merge_adapters, require_peft
from cuber.layers.rule import rule_for
from cuber.methods.adapter_coverage import adapter_coverage
from cuber.methods.cuber import SubspaceMethod
from cuber.networks.heads import HeadCopies, heads_of, keep_selected_copies
from cuber.subspace import BACKWARD_TRANSFER, FORWARD_TRANSFER, Gram
from cuber.subspace.free import ChangeBudget, directions_within, energy_outside, free_directions, output_energy

OUTPUT_LAYERS = ("classifier", "score")
"""What Hugging Face's classifiers call their output layer."""
FIRST_SAMPLES = 256
"""Samples that the rows of a new task's adapters are computed from."""


@dataclass(eq=False, repr=False)
class LoRA(SubspaceMethod):
    """Learn each task by a low-rank adapter that leaves the outputs of old tasks as they are.

    Args:
        model: any ``nn.Module``, for example one of transformers; its linear layers become those of peft.
        targets: names of the layers to adapt, or ends of names, such as ``["query", "value"]``; None: all linear ones.
        output_layers: modules of which every task trains a copy of its own; None: ``classifier`` and ``score``, where
            the model has them. The heads of a :class:`MultiHead` need not be named.
    """

    remembered: ClassVar[dict[str, Any]] = {"ranks": dict[str, Ranks], "budgets": dict[str, ChangeBudget]}

    targets: Sequence[str] | str | None = field(default=None, kw_only=True)
    output_layers: Sequence[str] | None = field(default=None, kw_only=True)
    rank: int = setting(8, "rows of a task's adapter in each layer", low=1)
    scale: float = setting(1.0, "factor s of every update", low=1e-9)
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
        super().__post_init__()

    # The model

    def _find_layers(self) -> None:
        """Find the layers to adapt, and give every task a copy of the output layers."""
        self.adapters = Adapters(self.model, self.scale)
        require_peft()
        if self.max_rank:
            raise CuberError("LoRA takes no max_rank: outputs for old inputs would change with each direction dropped")
        if has_adapters(self.model):
            raise CuberError(
                "this model has adapters of peft already: give LoRA the model without them, "
                "peft_model.merge_and_unload() or peft_model.unload()"
            )
        outputs = self._output_layers()
        exempt = [*outputs.values(), *(multi_head.heads for multi_head in self.heads)]
        found = adaptable(self.model, self.targets, exempt)
        if not found:
            raise CuberError("the model has no linear layer to adapt besides its output layers")
        for name, module in outputs.items():
            parent, _, attribute = name.rpartition(".")
            setattr(self.model.get_submodule(parent), attribute, HeadCopies(module))
        self.heads = heads_of(self.model)
        self._freeze_base()  # a bias that is frozen is no part of a layer's matrix
        for name, module in found.items():
            rule = rule_for(module)
            assert rule is not None
            self.layers[name] = self.make_layer(ProtectedLayer(name, [module], rule))
            self.layers[name].attach()

    def _output_layers(self) -> dict[str, nn.Module]:
        modules = dict(self.model.named_modules())
        if self.output_layers is None:
            return {name: modules[name] for name in OUTPUT_LAYERS if name in modules}
        for name in self.output_layers:
            if not name or name not in modules:
                raise CuberError(f"output_layers names '{name}', but the model has no such module")
        return {name: modules[name] for name in self.output_layers}

    def _freeze_base(self) -> None:
        trained = {id(p) for multi_head in self.heads for p in multi_head.heads.parameters()}
        trained |= {id(p) for p in self.adapters.parameters()}
        self.freezer.freeze(p for p in self.model.parameters() if id(p) not in trained)

    def freeze_parameters(self) -> None:
        Method.freeze_parameters(self)
        self._freeze_base()

    @property
    def peft_model(self) -> Any:
        """peft's view of the model, for its ``save_pretrained``; None before the first task."""
        return self.adapters.peft_model

    def mean_gradients(self, loader: Iterable[Batch]) -> dict[str, Tensor]:
        """Return gradients of the frozen weights, by which the regimes are decided."""
        weights = [layer.parameter for layer in self.layers.values()]
        try:
            for weight in weights:
                weight.requires_grad_(True)
            return super().mean_gradients(loader)
        finally:
            for weight in weights:
                weight.requires_grad_(False)

    # A task

    def begin_task(
        self, loader: Iterable[Batch], loss_fn: LossFunction | None = None, *, steps: int | None = None
    ) -> None:
        """Add the adapters of the task; the arguments are those of :meth:`Method.begin_task`."""
        require_attached(self, "begin_task")
        self._resize_heads(self.tasks + 1)
        try:
            super().begin_task(loader, loss_fn, steps=steps)
        except BaseException:
            self._resize_heads(max(1, self.tasks + (self.task is not None)))
            raise

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
        self._open_task(self.tasks)

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

    def _open_task(self, task: int) -> None:
        """Train the up-projections of a task, as far as its update may grow."""
        self.adapters.trained = [name for name in (shared(task), private(task)) if name in self.adapters.ranks]
        ranks = self.adapters.ranks.get(shared(task), {})
        self.bounds = {name: self._budget(name).largest_norm(self.tolerance) for name in ranks}
        self._activate(task)

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

    def weight(self, name: str) -> Tensor:
        """Return the weight of a layer with all adapters that are active, out x d."""
        layer = self.layers[name]
        change = self.adapters.change(name)
        weight = layer.parameter.detach()
        return layer.join([weight if change is None else weight + change])

    def on_task_left(self) -> None:
        super().on_task_left()
        self.adapters.trained, self.bounds = [], {}

    # How the model is shown

    def show_task(self, task: int | None) -> None:
        super().show_task(task)
        self._activate(task)

    def _activate(self, task: int | None) -> None:
        own = () if task is None else (private(task),)
        self.adapters.activate([name for name in self.adapters.ranks if not is_private(name) or name in own])

    def export(self, task: int) -> nn.Module:
        """Return a plain copy of the model that answers for ``task``, its adapters in the weights, without peft."""
        plain = super().export(task)
        merge_adapters(plain)
        return plain

    def on_detach(self) -> None:
        """Put the adapters that serve all tasks into the weights, and the selected heads in their places."""
        super().on_detach()
        self._activate(None)
        self.adapters.merge()
        keep_selected_copies(self.model)
        self.heads = heads_of(self.model)

    def coverage(self) -> Coverage:
        """Return what becomes of the parameters: adapters are trained, the weights of the model never are."""
        ups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
        for name, ranks in self.ranks.items():
            ups[is_private(name)] += [self.adapters.up(name, layer) for layer in ranks]
        return adapter_coverage(self.model, self.freezer, ups[False], ups[True], self.adapters.parameters())

    # Saving and loading

    @property
    def ranks(self) -> dict[str, Ranks]:
        """Adapter -> layer -> rank."""
        return self.adapters.ranks

    @ranks.setter
    def ranks(self, _: dict[str, Ranks]) -> None:
        """``load_state_dict`` has added the adapters."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state: adds its adapters to the model, so load the model's weights after it."""
        require_attached(self, "load_state_dict")
        remembered = state.get("remembered") if isinstance(state, dict) else None
        ranks = remembered.get("ranks", {}) if isinstance(remembered, dict) else {}
        before, weights = dict(self.adapters.ranks), copy.deepcopy(self.model.state_dict())
        self._set_adapters(ranks)
        try:
            super().load_state_dict(state)
            if self.task is not None:
                self._open_task(self.task)
        except BaseException:
            self._set_adapters(before)
            self.model.load_state_dict(weights)
            self._activate(self.shown_task)
            raise

    def check_state(self, remembered: dict[str, Any]) -> None:
        if missing := self.layers.keys() ^ remembered["with_bias"].keys():
            raise CuberError(
                f"this state was saved with other targets: '{min(missing)}' is adapted in one of them only"
            )
        super().check_state(remembered)

    def _set_adapters(self, ranks: dict[str, Ranks]) -> None:
        """Add and remove adapters and heads until the model has those of a saved state."""
        for name in [name for name, own in self.adapters.ranks.items() if ranks.get(name) != own]:
            self.adapters.remove(name)
        for name, own in ranks.items():
            if name not in self.adapters.ranks:
                self.adapters.add(name, own)
        self._resize_heads(max([1, *(number(name) + 1 for name in ranks)]))

    def _resize_heads(self, count: int) -> None:
        for multi_head in self.heads:
            if isinstance(multi_head, HeadCopies):
                while len(multi_head.heads) < count:
                    multi_head.add_copy()
                    distributed.broadcast_(list(multi_head.heads[-1].parameters()))
                del multi_head.heads[count:]


def shared(task: int) -> str:
    """Return the name of the adapter of a task that is active for all tasks."""
    return f"task_{task}"


def private(task: int) -> str:
    """Return the name of the adapter of a task that is active for this task only."""
    return f"task_{task}_reuse"


def is_private(name: str) -> bool:
    """Return whether an adapter is active for one task only."""
    return name.endswith("_reuse")


def number(name: str) -> int:
    """Return the task that an adapter belongs to."""
    return int(name.split("_")[1])
