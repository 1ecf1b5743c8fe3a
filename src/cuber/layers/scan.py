"""Finding what can be protected in a model, and saying why the rest cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy

from cuber.errors import CuberError
from cuber.layers.protected import Attached, ProtectedLayer
from cuber.layers.rule import RULES, Rule, rule_for


@dataclass
class Scan:
    """The layers of a model that can be protected, by name, and the other trained parameters with the reason."""

    layers: dict[str, ProtectedLayer]
    uncovered: dict[str, str]


def scan(model: nn.Module, exempt: Iterable[nn.Parameter] = ()) -> Scan:
    """Sort the trained parameters of a model; ``exempt`` ones (heads) are left out of both kinds."""
    _refuse_lazy(model)
    passed_over = {id(parameter) for parameter in exempt}
    names = {
        id(parameter): name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in passed_over
    }
    users = _users(model, names)
    module_names = {id(module): name for name, module in model.named_modules()}
    layers: dict[str, ProtectedLayer] = {}
    reasons: dict[int, str] = {}
    for key, modules in users.items():
        rule, reasons[key] = _common_rule(modules, key, users)
        if rule is not None:
            # The model itself may be a single layer, whose name torch leaves empty.
            name = module_names[id(modules[0])] or type(modules[0]).__name__.lower()
            layers[name] = ProtectedLayer(name, modules, rule)
    covered = {id(parameter) for layer in layers.values() for parameter in layer.parameters}
    return Scan(layers, {names[key]: reason for key, reason in reasons.items() if key not in covered})


def _users(model: nn.Module, names: dict[int, str]) -> dict[int, list[nn.Module]]:
    """Which modules hold each parameter; tied weights are held by several."""
    users: dict[int, list[nn.Module]] = {key: [] for key in names}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in users:
                users[id(parameter)].append(module)
    return users


def _common_rule(
    modules: list[nn.Module], key: int, users: dict[int, list[nn.Module]]
) -> tuple[type[Rule] | None, str]:
    """The rule for a parameter that is the weight of all these modules, or the reason why there is none."""
    kinds = ", ".join(sorted({type(module).__name__ for module in modules}))
    rules = {None if _is_patched(module) else rule_for(module) for module in modules}
    biases = {id(module._parameters.get("bias")) for module in modules}
    if None in rules:
        ours = any(isinstance(module, tuple(RULES)) for module in modules)
        tied = f"tied between {kinds}" if len(modules) > 1 else f"no rule for {kinds}"
        return None, f"{kinds} with a forward of its own" if ours and len(modules) == 1 else tied
    if any(id(module._parameters.get("weight")) != key for module in modules):
        return None, f"not the weight of {kinds}"
    if len(rules) > 1:
        return None, f"tied between {kinds}"
    if len(biases) > 1 or any(users[bias] != modules for bias in biases if bias in users):
        return None, "tied between layers with different weights or biases"
    return rules.pop(), ""


def _is_patched(module: nn.Module) -> bool:
    """Whether somebody else has put another forward on this very module."""
    return "forward" in module.__dict__ and not isinstance(module.__dict__["forward"], Attached)


def _refuse_lazy(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise CuberError(
                f"layer '{name.rpartition('.')[0]}' has no weights yet: it is built lazily; "
                "run one batch through the model before handing it to a learner"
            )
