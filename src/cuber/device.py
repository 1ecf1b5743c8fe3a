"""Where a model computes, and in which precision: asked in every step, so asked cheaply."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.optim import Optimizer


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


def unscale(optimizer: Optimizer) -> None:
    """Do what a ``GradScaler`` leaves to a fused step: what a method adds to gradients is on the scale of the loss."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if parameter.grad is not None:
            parameter.grad.div_(scale.to(parameter.grad.device))
    optimizer.grad_scale = None  # type: ignore[attr-defined]
