"""In which precision products are computed that old tasks rely on, whatever the forward pass uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64; Apple's GPUs do not."""
    return device.type != "mps"


def in_float64(tensor: Tensor) -> Tensor:
    """Return the tensor in float64; on the CPU where its device has none."""
    return tensor.detach().to(tensor.device if has_float64(tensor.device) else "cpu", torch.float64)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast and TF32, for products that protect old tasks."""
    if torch.is_autocast_enabled(device.type):
        return _without_autocast(device)
    return _matrix_products("highest") if device.type == "cuda" else nullcontext()


@contextmanager
def _without_autocast(device: torch.device) -> Iterator[None]:
    with torch.autocast(device.type, enabled=False), _matrix_products("highest"):
        yield


@contextmanager
def _matrix_products(precision: str) -> Iterator[None]:
    """While open, float32 products have a precision: "highest", or "high" for TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
