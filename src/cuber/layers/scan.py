"""Which layers of a model can be protected, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from cuber.errors import CuberError
from cuber.layers.attached import Replacement
from cuber.layers.composite import CompositeRule, PartRule
from cuber.layers.computed import old_hooks
from cuber.layers.parametrized import ParametrizedLayer, obstacle
from cuber.layers.protected import ProtectedLayer
from cuber.layers.rule import Rule, registered_type, rule_for
from cuber.layers.table import Table, table_obstacle

COMPUTED_BIAS = "its bias is parametrized"


@dataclass
class Scan:
    """What can be protected of a model, and what cannot."""

    layers: dict[str, ProtectedLayer]
    """Layer name -> layer."""
    tables: dict[str, Table]
    """Name of an embedding -> its weight; it may be that of a layer too."""
    uncovered: dict[str, str]
    """Name of any other trained parameter -> the reason."""


class Use(NamedTuple):
    """A parameter in a module that holds it."""

    module: nn.Module
    name: str


class Place(NamedTuple):
    """Where a parameter is the weight of a layer."""

    rule: type[Rule]
    bias: str | None
    """Name of the bias beside it."""
    host: nn.Module
    """The module whose forward pass computes the layer."""
    layer: str
    """Name of the layer."""


def scan(model: nn.Module, exempt: Iterable[nn.Parameter] = ()) -> Scan:
    """Divide the trained parameters of a model into layers and embeddings that can be protected, and others.

    Args:
        model: any module.
        exempt: parameters to leave out of both, such as heads.
    """
    exempted = set(map(id, exempt))
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise CuberError(
                f"layer '{name.rpartition('.')[0]}' has no weights yet: it is built lazily; "
                "run one batch through the model before handing it to a learner"
            )
        if parameter.requires_grad and id(parameter) not in exempted:
            names[id(parameter)] = name
    uses: dict[int, list[Use]] = {key: [] for key in names}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) in uses:
                uses[id(parameter)].append(Use(module, name))  # several modules hold a tied weight
    places = dict(_places(model))
    parametrized = _parametrized(places, uses)
    layers: dict[str, ProtectedLayer] = {}
    tables: dict[str, Table] = {}
    reasons: dict[int, str] = {}
    module_names = {module: name for name, module in model.named_modules()}
    for key, of_parameter in uses.items():
        if key in parametrized:
            computed, reasons[key] = parametrized[key]
            if computed is not None:
                layers[computed.name] = computed
            continue
        lookups = [use.module for use in of_parameter if table_obstacle(use.module) == ""]
        products = [use for use in of_parameter if use.module not in lookups]
        reasons[key] = _obstacle(products, places, uses, of_parameter) if products else ""
        if reasons[key]:
            continue
        if products:
            layer = _layer(products, places)
            layers[layer.name] = layer
        if lookups:
            name = module_names[lookups[0]] or type(lookups[0]).__name__.lower()
            tables[name] = Table(name, lookups)
    covered = {id(parameter) for layer in layers.values() for parameter in layer.parameters}
    covered |= {id(table.parameter) for table in tables.values()}
    return Scan(layers, tables, {names[key]: reason for key, reason in reasons.items() if key not in covered})


def _layer(uses: list[Use], places: dict[Use, Place]) -> ProtectedLayer:
    first, hosts = places[uses[0]], [places[use].host for use in uses]
    modules = [use.module for use in uses]
    return ProtectedLayer(first.layer, modules, first.rule, uses[0].name, first.bias, hosts)


def _places(model: nn.Module) -> Iterator[tuple[Use, Place]]:
    """Iterate over the weights that rules describe, those of modules inside of others last."""
    composites: list[tuple[str, nn.Module, type[CompositeRule]]] = []
    for name, module in model.named_modules():
        rule = None if _is_patched(module) else rule_for(module)
        if rule is None:
            continue
        if issubclass(rule, Rule):
            # The model itself may be a single layer, whose name is empty in torch.
            yield Use(module, "weight"), Place(rule, "bias", module, name or type(module).__name__.lower())
        elif not rule.obstacle(module):
            composites.append((name, module, rule))
    for name, module, composite in composites:  # what they compute themselves is no layer that is called
        for part_name, part in composite.parts(module).items():
            place = Place(PartRule, part.bias, module, f"{name}.{part_name}" if name else part_name)
            yield Use(part.module, part.weight), place


def _parametrized(
    places: dict[Use, Place], uses: dict[int, list[Use]]
) -> dict[int, tuple[ParametrizedLayer | None, str]]:
    """Return the layers with computed weights, or the reason why there is none, by the parameters (by id) of each."""
    found: dict[int, tuple[ParametrizedLayer | None, str]] = {}
    for use, place in places.items():
        if not is_parametrized(use.module, use.name):
            continue
        keys = [id(parameter) for parameter in use.module.parametrizations[use.name].parameters()]  # type: ignore
        layer, reason = None, ""
        if not place.rule.whole:
            reason = f"a parametrized weight of {type(place.host).__name__}, which has several"
        elif _has_computed_bias(use, place):
            reason = COMPUTED_BIAS
        elif any(len(uses.get(key, [])) != 1 for key in keys):
            reason = "parametrized, with originals that are frozen or tied"
        elif not (reason := obstacle(use.module, use.name)):
            layer = ParametrizedLayer(place.layer, [use.module], place.rule, use.name, place.bias)
        found |= dict.fromkeys(keys, (layer, reason))
    return found


def _has_computed_bias(use: Use, place: Place) -> bool:
    return place.bias is not None and is_parametrized(use.module, place.bias)


def _obstacle(
    of_parameter: list[Use], places: dict[Use, Place], uses: dict[int, list[Use]], with_lookups: list[Use]
) -> str:
    """Return why a parameter is not the weight of one layer; empty: it is."""
    kinds = ", ".join(sorted({type(use.module).__name__ for use in with_lookups}))
    found = [places.get(use) for use in of_parameter]
    if None in found:
        return _reason(of_parameter[0].module, kinds) if len(with_lookups) == 1 else f"tied between {kinds}"
    of_layer = [place for place in found if place is not None]
    if len({(use.name, place.rule, place.bias) for use, place in zip(of_parameter, of_layer, strict=True)}) > 1:
        return f"tied between {kinds}"
    if any(_has_computed_bias(use, place) for use, place in zip(of_parameter, of_layer, strict=True)):
        return COMPUTED_BIAS
    name = of_layer[0].bias
    biases = {id(use.module._parameters.get(name or "")) for use in of_parameter}
    holders = [use.module for use in of_parameter]
    if len(biases) > 1 or any([use.module for use in uses[bias]] != holders for bias in biases if bias in uses):
        return "tied between layers with different weights or biases"
    return ""


def _reason(module: nn.Module, kind: str) -> str:
    """Return why a parameter of a module is not the weight of a layer."""
    if obstacle := table_obstacle(module):
        return obstacle
    if isinstance(module, ParametrizationList):
        return "parametrized, and not the weight of a layer"
    if old_hooks(module):
        return "computed by a hook: use torch.nn.utils.parametrizations instead"
    if registered_type(module)[1] is None:
        return f"no rule for {kind}"
    rule = None if _is_patched(module) else rule_for(module)
    if rule is None:
        return f"{kind} with a forward of its own"
    reason: str = rule.obstacle(module) if issubclass(rule, CompositeRule) else ""
    return f"no rule for {reason}" if reason else f"not the weight of {kind}"


def _is_patched(module: nn.Module) -> bool:
    """Return whether this module has a forward pass of its own that is not a learner's."""
    return "forward" in module.__dict__ and not isinstance(module.__dict__["forward"], Replacement)
