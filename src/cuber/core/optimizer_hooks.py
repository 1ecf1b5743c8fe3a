"""Gradients as methods think of them: those of a loss that is minimized, on its own scale."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.optim import Optimizer


def unscale(optimizer: Optimizer) -> None:
    """Do what a ``GradScaler`` leaves to a fused step."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if parameter.grad is not None:
            parameter.grad.div_(scale.to(parameter.grad.device))
    optimizer.grad_scale = None  # type: ignore[attr-defined]


def maximizes(optimizer: Optimizer) -> bool:
    """Whether any of its steps go up, so that gradients are those of minus the loss."""
    return any(group.get("maximize") for group in optimizer.param_groups)


def minimized(optimizer: Optimizer) -> AbstractContextManager[None]:
    """While open, gradients are those of what is minimized, whichever way the optimizer goes."""
    return _negated(optimizer) if maximizes(optimizer) else nullcontext()


@contextmanager
def _negated(optimizer: Optimizer) -> Iterator[None]:
    _negate(optimizer)
    try:
        yield
    finally:
        _negate(optimizer)


@torch.no_grad()
def _negate(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("maximize") else []:
            if parameter.grad is not None:
                parameter.grad.neg_()
