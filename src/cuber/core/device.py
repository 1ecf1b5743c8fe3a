"""The device and the precision that a model computes with; used in every step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter; of a model without parameters, the CPU."""
    parameter = _first_parameter(model)
    return torch.device("cpu") if parameter is None else parameter.device


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """Return ``next(module.parameters())`` without visiting all modules."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    found = (_first_parameter(child) for child in module._modules.values() if child is not None)
    return next((parameter for parameter in found if parameter is not None), None)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context that disables autocast, for steps inside an autocast that is meant for the forward pass."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
