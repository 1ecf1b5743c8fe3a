"""Weights that torch computes from other parameters, by a parametrization or, as it did before, by a hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized, type_before_parametrizations


def parametrizations_of(module: nn.Module) -> dict[str, ParametrizationList]:
    """Return the parametrizations of a module by the names of what they compute."""
    if not is_parametrized(module):
        return {}
    return cast(dict[str, ParametrizationList], dict(cast(nn.ModuleDict, module.parametrizations).items()))


def originals(parametrization: ParametrizationList) -> list[Tensor]:
    """Return what a weight is computed from; the parametrization may have parameters of its own besides."""
    if parametrization.is_tensor:
        return [parametrization.original]
    return [getattr(parametrization, f"original{number}") for number in range(parametrization.ntensors)]


def bake_parametrizations(model: nn.Module) -> None:
    """Make computed weights of a copy of a model plain parameters, as they are now.

    Not ``parametrize.remove_parametrizations``: copies share the class that torch has made for the original's module,
    and it removes the weight from this class.
    """
    for module in list(model.modules()):
        computed = parametrizations_of(module)
        if not computed:
            continue
        # Called themselves, as the cache of torch holds the weights of the original for its copies too.
        values = {name: each().detach().clone() for name, each in computed.items()}
        module.__class__ = type_before_parametrizations(module)
        del module.parametrizations
        for name, each in computed.items():
            if any(isinstance(original, nn.Parameter) for original in originals(each)):
                requires_grad = any(parameter.requires_grad for parameter in each.parameters())
                module.register_parameter(name, nn.Parameter(values[name], requires_grad=requires_grad))
            else:
                module.register_buffer(name, values[name])
        _remove_compatibility_hooks(module)


def _remove_compatibility_hooks(module: nn.Module) -> None:
    """Remove the hooks by which ``weight_norm`` loads states of an older form: a module with them cannot be saved."""
    hooks: dict[int, Callable[..., Any]] = module._load_state_dict_pre_hooks
    for key, hook in list(hooks.items()):
        function = getattr(hook, "hook", hook)  # torch wraps it
        if getattr(function, "__module__", "") == parametrizations.__name__:
            del hooks[key]
