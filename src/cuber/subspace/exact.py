"""What bases are computed in: float64, some numbers at a time."""

from __future__ import annotations

import torch
from torch import Tensor

NUMBERS_AT_ONCE = 2**21
"""How many are written down in float64 at a time: enough to multiply fast, not so many as to fill memory."""


def in_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64; on the CPU where its device has none (Apple's GPUs)."""
    place = "cpu" if tensor.device.type == "mps" else tensor.device
    return tensor.detach().to(place, torch.float64)
