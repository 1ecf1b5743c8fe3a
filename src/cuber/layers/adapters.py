"""Low-rank adapters of the package ``peft``: several in a model, active together, each in layers of its own choice."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from cuber.errors import CuberError, needs_extra
from cuber.layers.computed import old_hooks
from cuber.layers.rule import rule_for
from cuber.layers.tied import untie

Ranks = dict[str, int]
"""Layer name -> rank of its adapter."""


def require_peft() -> Any:
    """Return the package ``peft``; raise where it is not installed."""
    with needs_extra("lora", "LoRA"):
        import peft
    return peft


def has_adapters(model: nn.Module) -> bool:
    """Return whether peft has replaced layers of a model."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return any(isinstance(module, BaseTunerLayer) for module in model.modules())


def adaptable(model: nn.Module, targets: Iterable[str] | None, exempt: Iterable[nn.Module]) -> dict[str, nn.Module]:
    """Return the layers that get adapters by name: linear ones, and Hugging Face's ``Conv1D``.

    Args:
        model: any module.
        targets: names of layers, or ends of names, such as "query"; None: all linear layers.
        exempt: modules in which no layer gets an adapter, such as heads.
    """
    exempted = {id(inner) for module in exempt for inner in module.modules()}
    found = {
        name: module
        for name, module in model.named_modules()
        if name and id(module) not in exempted and is_linear(module) and rule_for(module) is not None
        if not is_parametrized(module)
        and not old_hooks(module)  # peft would change a weight that is computed anew in each call
    }
    if targets is None:
        return found
    chosen = [targets] if isinstance(targets, str) else list(targets)
    for target in chosen:
        if not any(_ends_with(name, target) for name in found):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in found})) or "none"
            raise CuberError(f"no linear layer of the model is called '{target}' (linear layers: {known})")
    return {name: module for name, module in found.items() if any(_ends_with(name, target) for target in chosen)}


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is one of the linear layers that peft has adapters for."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _ends_with(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


class Adapters:
    """The adapters of a model. Adapter n adds ``scale B_n A_n`` to the weight of each of its layers while it is active.

    Args:
        model: any module; its linear layers are replaced by peft's when the first adapter is added.
        scale: factor of every update.
    """

    def __init__(self, model: nn.Module, scale: float) -> None:
        self.model = model
        self.scale = scale
        self.ranks: dict[str, Ranks] = {}
        """Adapter -> layer -> rank."""
        self.peft_model: Any = None
        """peft's wrapper around the model, for its ``save_pretrained``; None while there is no adapter."""
        self.active: list[str] = []
        """Adapters that the model computes with."""
        self.trained: list[str] = []
        """Adapters whose up-projection is trained."""

    def add(self, name: str, ranks: Ranks) -> None:
        """Add an adapter that changes nothing yet; layers that are not in ``ranks`` get none."""
        peft = require_peft()
        training, trained = self.model.training, _flags(self.model)
        patterns = {layer: re.escape(layer) for layer in sorted(ranks)}
        config = peft.LoraConfig(
            r=1,
            lora_alpha=self.scale,
            target_modules=f"({'|'.join(patterns.values())})",  # peft takes names in a list for ends of names
            rank_pattern={f"^{patterns[layer]}": rank for layer, rank in ranks.items()},
            alpha_pattern={f"^{patterns[layer]}": self.scale * rank for layer, rank in ranks.items()},
        )
        with warnings.catch_warnings():
            # peft warns of each Conv1D that its transposed weight is noticed, and of tied weights: see merge_adapters
            warnings.filterwarnings("ignore", message=".*(fan_in_fan_out|ensure_weight_tying).*")
            if self.peft_model is None:
                self.peft_model = peft.get_peft_model(self.model, config, adapter_name=name)
            else:
                self.peft_model.add_adapter(name, config)
        self.ranks[name] = dict(ranks)
        self.model.train(training)
        _set_flags(trained)  # peft freezes all of the model, heads included

    def remove(self, name: str) -> None:
        """Remove an adapter; after the last one, the model has its own layers again."""
        del self.ranks[name]
        trained = _flags(self.model)
        if self.ranks:
            self.peft_model.delete_adapter(name)
        else:
            self.peft_model.unload()
            self.peft_model = None
        _set_flags(trained)

    def merge(self) -> None:
        """Put the active adapters into the weights and remove all; then the model has its own layers again."""
        if self.peft_model is not None:
            merge_adapters(self.model)
        self.ranks, self.active, self.trained, self.peft_model = {}, [], [], None

    def activate(self, names: Iterable[str]) -> None:
        """Let the model compute with these adapters only."""
        self.active = list(names)
        if self.peft_model is not None:
            self.peft_model.base_model.set_adapter(self.active)  # which also lets all of them train
        for name, ranks in self.ranks.items():
            for layer in ranks:
                self.down(name, layer).requires_grad_(False)
                self.up(name, layer).requires_grad_(name in self.trained)

    def down(self, name: str, layer: str) -> nn.Parameter:
        """Return A, rank x in, of an adapter in a layer."""
        return self._layer(layer).lora_A[name].weight

    def up(self, name: str, layer: str) -> nn.Parameter:
        """Return B, out x rank, of an adapter in a layer."""
        return self._layer(layer).lora_B[name].weight

    def _layer(self, name: str) -> Any:
        return self.model.get_submodule(name)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over A and B of all adapters."""
        for name, ranks in self.ranks.items():
            for layer in ranks:
                yield self.down(name, layer)
                yield self.up(name, layer)

    @torch.no_grad()
    def set_rows(self, name: str, layer: str, rows: Tensor) -> None:
        """Set A; B is 0."""
        self.down(name, layer).copy_(rows)

    @torch.no_grad()
    def change(self, layer: str) -> Tensor | None:
        """Return what the active adapters add to the weight of a layer, in the layout of the weight; None: nothing."""
        module = self._layer(layer)
        changes = [module.get_delta_weight(name) for name in self.active if layer in self.ranks[name]]
        return torch.stack(changes).sum(0) if changes else None


def active_adapters(model: nn.Module) -> set[str]:
    """Return the names of the adapters that a model computes with; does not need peft where there are none."""
    layers: list[Any] = [module for module in model.modules() if isinstance(getattr(module, "lora_A", None), nn.Module)]
    return {name for layer in layers for name in layer.active_adapters if name in layer.lora_A}


def merge_adapters(model: nn.Module) -> None:
    """Put the active adapters of a model into its weights, and its own layers in the place of peft's."""
    from peft.tuners.lora import LoraLayer

    adapted: dict[str, Any] = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    for name, module in adapted.items():
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, module.base_layer)
    for name, module in adapted.items():
        if active_adapters(module):
            places = [
                place for place, other in model.named_modules(remove_duplicate=False) if other is module.base_layer
            ]
            if places[1:]:  # the layer has adapters in one place only
                module.base_layer = copy.deepcopy(module.base_layer)
                model.set_submodule(name, module.base_layer)
            untie(model, [module.base_layer])
            module.merge()
    vars(model).pop("peft_config", None)


def _flags(model: nn.Module) -> dict[nn.Parameter, bool]:
    return {parameter: parameter.requires_grad for parameter in model.parameters()}


def _set_flags(flags: Mapping[nn.Parameter, bool]) -> None:
    for parameter, flag in flags.items():
        parameter.requires_grad_(flag)
