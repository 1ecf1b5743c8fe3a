"""The bookkeeping of methods that train adapters: their place in the model, heads, export, saving and loading.

The algorithm is in ``methods/lora.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from cuber.core import distributed
from cuber.core.batches import Batch
from cuber.core.coverage import Coverage
from cuber.core.learner import LossFunction, Method
from cuber.core.misuse import require_attached
from cuber.core.settings import setting
from cuber.errors import CuberError
from cuber.layers import ProtectedLayer
from cuber.layers.adapters import Adapters, Ranks, adaptable, has_adapters, merge_adapters, require_peft
from cuber.layers.attached import has_fused_kernels
from cuber.layers.rule import rule_for
from cuber.methods.cuber import SubspaceMethod
from cuber.networks.heads import HeadCopies, head_parameters, heads_of, keep_selected_copies

OUTPUT_LAYERS = ("classifier", "score")
"""What Hugging Face's classifiers call their output layer."""


@dataclass(eq=False, repr=False)
class AdapterMethod(SubspaceMethod):
    """A method that freezes the weights of the model, and trains adapters and output layers for each task.

    Each task has up to two adapters: one that is active for all tasks (``shared``), one for itself only (``private``).

    Args:
        targets, output_layers: see :class:`LoRA`.
    """

    remembered: ClassVar[dict[str, Any]] = {"ranks": dict[str, Ranks]}

    targets: Sequence[str] | str | None = field(default=None, kw_only=True)
    output_layers: Sequence[str] | None = field(default=None, kw_only=True)
    scale: float = setting(1.0, "factor s of every update", low=1e-9)

    # The model

    def _find_layers(self) -> None:
        """Find the layers to adapt, and give every task a copy of the output layers."""
        self.adapters = Adapters(self.model, self.scale)
        require_peft()
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
            self.layers[name].attach(fused=has_fused_kernels(self.model))

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

    def mean_gradients(self, loader: Iterable[Batch], *, dropout: bool = False) -> dict[str, Tensor]:
        """Return gradients of the frozen weights, by which the regimes are decided."""
        weights = [layer.parameter for layer in self.layers.values()]
        try:
            for weight in weights:
                weight.requires_grad_(True)
            return super().mean_gradients(loader, dropout=dropout)
        finally:
            for weight in weights:
                weight.requires_grad_(False)

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

    def open_task(self, task: int) -> None:
        """Train the up-projections of a task."""
        self.adapters.trained = [name for name in (shared(task), private(task)) if name in self.adapters.ranks]
        self._activate(task)

    def on_task_left(self) -> None:
        super().on_task_left()
        self.adapters.trained = []

    def weight(self, name: str) -> Tensor:
        """Return the weight of a layer with all adapters that are active, out x d."""
        layer = self.layers[name]
        change = self.adapters.change(name)
        weight = layer.parameter.detach()
        return layer.join([weight if change is None else weight + change])

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
        trained = {False: 0, True: 0}
        for name, ranks in self.ranks.items():
            trained[is_private(name)] += sum(self.adapters.up(name, layer).numel() for layer in ranks)
        heads, frozen = set(head_parameters(self.model)), set(self.freezer.names())
        added = heads.union(self.adapters.parameters())
        base = {name: p for name, p in self.model.named_parameters() if p not in added}
        by_user = [name for name, p in base.items() if not p.requires_grad and name not in frozen]
        layers = [name.replace(".base_layer.", ".").rpartition(".")[0] or name for name in by_user]
        return Coverage(
            protected=trained[False],
            per_task=trained[True],
            unprotected={},
            heads=sum(p.numel() for p in heads),
            frozen_by_user=tuple(dict.fromkeys(layers)),
            frozen=sum(p.numel() for name, p in base.items() if name in frozen),
        )

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
                self.open_task(self.task)
        except BaseException:
            self._set_adapters(before)
            self.model.load_state_dict(weights)
            self._activate(self.shown_task)
            raise

    def check_state(self, remembered: dict[str, Any]) -> None:
        # Layers that are bypassed were chosen, too; the first task shows which they are.
        saved = remembered["with_bias"].keys() | remembered["bypassed"]
        if missing := (self.layers.keys() | self.bypassed) ^ saved:
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
