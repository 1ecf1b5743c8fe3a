"""Which layers of a model can be protected, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy

from cuber.errors import CuberError
from cuber.layers.protected import Attached, ProtectedLayer
from cuber.layers.rule import Rule, registered_type, rule_for


@dataclass
class Scan:
    """Layer name -> layer that can be protected; name of any other trained parameter -> the reason."""

    layers: dict[str, ProtectedLayer]
    uncovered: dict[str, str]


def scan(model: nn.Module, exempt: Iterable[nn.Parameter] = ()) -> Scan:
    """Divide the trained parameters of a model into layers that can be protected and others.

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
    users: dict[int, list[nn.Module]] = {key: [] for key in names}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in users:
                users[id(parameter)].append(module)  # several modules hold a tied weight
    module_names = {id(module): name for name, module in model.named_modules()}
    layers: dict[str, ProtectedLayer] = {}
    reasons: dict[int, str] = {}
    for key, modules in users.items():
        rule, reasons[key] = _common_rule(modules, key, users)
        if rule is not None:
            # The model itself may be a single layer, whose name is empty in torch.
            name = module_names[id(modules[0])] or type(modules[0]).__name__.lower()
            layers[name] = ProtectedLayer(name, modules, rule)
    covered = {id(parameter) for layer in layers.values() for parameter in layer.parameters}
    return Scan(layers, {names[key]: reason for key, reason in reasons.items() if key not in covered})


def _common_rule(
    modules: list[nn.Module], key: int, users: dict[int, list[nn.Module]]
) -> tuple[type[Rule] | None, str]:
    """Return the rule for a parameter that is the weight of all these modules, or the reason why there is none."""
    kinds = ", ".join(sorted({type(module).__name__ for module in modules}))
    rules = {None if _is_patched(module) else rule_for(module) for module in modules}
    biases = {id(module._parameters.get("bias")) for module in modules}
    if None in rules and len(modules) > 1:
        return None, f"tied between {kinds}"
    if None in rules:
        known = registered_type(modules[0])[0] is not None
        return None, f"{kinds} with a forward of its own" if known else f"no rule for {kinds}"
    if any(id(module._parameters.get("weight")) != key for module in modules):
        return None, f"not the weight of {kinds}"
    if len(rules) > 1:
        return None, f"tied between {kinds}"
    if len(biases) > 1 or any(users[bias] != modules for bias in biases if bias in users):
        return None, "tied between layers with different weights or biases"
    return rules.pop(), ""


def _is_patched(module: nn.Module) -> bool:
    """Return whether this module has a forward pass of its own that is not a learner's."""
    return "forward" in module.__dict__ and not isinstance(module.__dict__["forward"], Attached)
