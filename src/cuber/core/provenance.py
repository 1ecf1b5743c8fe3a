"""Whether a loaded state meets the settings and the weights that it was saved with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cuber.core.settings import settings_of, short
from cuber.errors import CuberWarning

if TYPE_CHECKING:
    from cuber.core.learner import Method

SAMPLED = 8
"""Number of entries of each parameter that a state remembers."""


def present_settings(learner: Method) -> dict[str, Any]:
    """Return the hyper-parameters that decide what a learner computes, as plain values."""
    return {
        name: _plain(getattr(learner, name)) for name, (_, what) in settings_of(learner).items() if not what.equivalent
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value  # numpy's numbers


def sampled_weights(learner: Method) -> dict[str, Tensor]:
    """Return a few entries of each parameter of the model that does not depend on the task that is shown."""
    return {
        name: _sampled(parameter)
        for name, parameter in learner.model.named_parameters()
        if parameter.is_floating_point() and not parameter.is_meta and name not in learner.normalization.per_task
    }


def _sampled(parameter: Tensor) -> Tensor:
    places = torch.linspace(0, parameter.numel() - 1, min(SAMPLED, parameter.numel()), dtype=torch.float64).long()
    return parameter.detach().flatten()[places.to(parameter.device)].cpu()


def warn_of_other_settings(learner: Method, state: Mapping[str, Any]) -> None:
    """Warn if a learner has other hyper-parameters than the one that saved a state."""
    saved, present = state.get("settings", {}), present_settings(learner)  # earlier versions saved no settings
    other = [name for name in present if name in saved and saved[name] != present[name]]
    if other:
        changes = ", ".join(f"{name}={short(saved[name])} (here {short(present[name])})" for name in other)
        warnings.warn(
            f"this state was saved with {changes}: make {type(learner).__name__} with the same settings, unless the "
            "change is on purpose",
            CuberWarning,
            stacklevel=3,
        )


def warn_of_other_weights(learner: Method) -> None:
    """Warn, once after a state was loaded, if the model does not have the weights that belong to it.

    Not while it is loaded: the model's own weights may be loaded after it.
    """
    expected, learner.expected_weights = learner.expected_weights, {}
    present = sampled_weights(learner) if expected else {}
    other = [name for name in present if name in expected and not _same(present[name], expected[name])]
    if other:
        warnings.warn(
            f"the model does not have the weights that belong to the loaded state ('{other[0]}' differs"
            f"{f', and {len(other) - 1} more' if other[1:] else ''}): save and load model.state_dict() together with "
            "learner.state_dict()",
            CuberWarning,
            stacklevel=3,
        )


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two samples are the same up to the rounding of the coarser dtype."""
    limits = [torch.finfo(tensor.dtype) for tensor in (one, other)]
    rounding, smallest = (max(getattr(limit, name) for limit in limits) for name in ("eps", "tiny"))
    return torch.allclose(one.double(), other.double(), rtol=4 * rounding, atol=smallest, equal_nan=True)
