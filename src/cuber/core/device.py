"""Where a model computes, and in which precision: asked in every step, so asked cheaply."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter; of a model without one, the CPU."""
    parameter = _first_parameter(model)
    return torch.device("cpu") if parameter is None else parameter.device


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """As ``next(module.parameters())``, but without a look at all the other modules on the way."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        if child is not None and (parameter := _first_parameter(child)) is not None:
            return parameter
    return None


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """For our own products, where somebody steps inside an autocast that is meant for the forward pass."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
