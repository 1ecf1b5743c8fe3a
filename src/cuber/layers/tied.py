"""Weights that several modules have: a module that computes with another weight from now on gets one of its own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn

FLAG = "tie_word_embeddings"
"""What Hugging Face's configurations call tied embeddings."""


def untie(model: nn.Module, modules: Sequence[nn.Module], name: str = "weight") -> None:
    """Give modules a copy of their weight if others of the model have the same one, such as embeddings.

    A Hugging Face model would tie them again when it is loaded, or by ``tie_weights()``. So its configuration is
    changed to ``tie_word_embeddings=False``, and what else the flag ties gets copies, too. It stays where models read
    more into it: T5 and its relatives decide by it whether they scale outputs.

    Args:
        model: the whole model.
        modules: those that are to have a weight of their own, one for all of them.
        name: of the weight in the modules.
    """
    weight = getattr(modules[0], name)
    others = [module for module in model.modules() if module not in modules]
    if not any(parameter is weight for module in others for parameter in module._parameters.values()):
        return
    own = _copied(weight)
    for module in modules:
        setattr(module, name, own)
    _write_flags(model)


def _copied(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)


def _write_flags(model: nn.Module) -> None:
    """Change the configuration of Hugging Face models of which a weight is tied by name, but not in fact."""
    tying: list[Any] = [module for module in model.modules() if hasattr(module, "get_expanded_tied_weights_keys")]
    for module in tying:
        parameters = dict(module.named_parameters(remove_duplicate=False))
        pairs = module.get_expanded_tied_weights_keys(all_submodels=False).items()
        tied = [(target, source) for target, source in pairs if {target, source} <= parameters.keys()]
        if all(parameters[target] is parameters[source] for target, source in tied) or not _is_only_for_tying(module):
            continue
        for target, source in tied:
            if parameters[target] is parameters[source]:
                parent, _, attribute = target.rpartition(".")
                setattr(module.get_submodule(parent), attribute, _copied(parameters[target]))
        setattr(module.config, FLAG, False)
    for module in tying:
        module.all_tied_weights_keys = module.get_expanded_tied_weights_keys(all_submodels=True)


def _is_only_for_tying(model: Any) -> bool:
    """Return whether a configuration can be saved and loaded without the flag, and no forward pass reads it."""
    changed = model.config.to_dict() | {FLAG: False}
    if type(model.config).from_dict(dict(changed)).to_dict() != changed:
        return False
    forwards = {inspect.unwrap(type(module).forward) for module in model.modules()}
    return not any(inspect.isfunction(forward) and FLAG in forward.__code__.co_names for forward in forwards)
