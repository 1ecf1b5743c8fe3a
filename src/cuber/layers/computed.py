"""Weights that torch computes from other parameters, by a parametrization or, as it did before, by a hook."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized, type_before_parametrizations
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


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


# Old hooks


def old_hooks(module: nn.Module) -> dict[str, WeightNorm | SpectralNorm]:
    """Return the hooks of ``torch.nn.utils.weight_norm`` and its kind by the names of what they compute."""
    hooks = module._forward_pre_hooks.values()
    return {hook.name: hook for hook in hooks if isinstance(hook, WeightNorm | SpectralNorm)}


def is_computed(module: nn.Module, name: str) -> bool:
    """Return whether an attribute of a module is computed by a parametrization or an old hook."""
    return is_parametrized(module, name) or name in old_hooks(module)


# Computed weights that are frozen


class InEvaluation:
    """The ``train`` of a module that stays in evaluation mode; copied with the model."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        return self.module


_ITERATIONS = "_iterations_before_cuber"
"""Attribute of an old hook: the iterations that it makes for each batch when its weight is trained."""


def hold_computed(model: nn.Module, frozen: Iterable[nn.Parameter]) -> None:
    """Let frozen parameters give the weight that they give in evaluation: in training, some change their buffers."""
    ids = set(map(id, frozen))
    for module in model.modules():
        for parametrization in parametrizations_of(module).values():
            own = list(parametrization.parameters())
            if any(id(p) in ids for p in own) and not any(p.requires_grad for p in own):
                for step in parametrization:
                    step.eval().train = InEvaluation(step)  # type: ignore[method-assign]
        for name, hook in old_hooks(module).items():
            if isinstance(hook, SpectralNorm) and id(getattr(module, f"{name}_orig")) in ids:
                vars(hook).setdefault(_ITERATIONS, hook.n_power_iterations)
                hook.n_power_iterations = 0


def release_computed(model: nn.Module) -> None:
    """Undo ``hold_computed``, also in a copy of the model."""
    for module in model.modules():
        for parametrization in parametrizations_of(module).values():
            for step in parametrization:
                if isinstance(step.__dict__.get("train"), InEvaluation):
                    del step.__dict__["train"]
                    step.train(parametrization.training)
        for hook in old_hooks(module).values():
            if _ITERATIONS in vars(hook):
                hook.n_power_iterations = vars(hook).pop(_ITERATIONS)  # type: ignore[union-attr]
