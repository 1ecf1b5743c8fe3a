"""The patches that a convolution sees, gathered one number at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor


def padding_before(conv: Any) -> list[int]:
    """How many positions are added in front, per dimension."""
    if conv.padding == "valid":
        return [0] * len(conv.kernel_size)
    if conv.padding == "same":  # what does not halve goes behind
        return [d * (k - 1) // 2 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    return list(conv.padding)


def inside(position: int, length: int, mode: str) -> int | None:
    """Which of ``length`` positions a padded position shows; None for a zero."""
    if 0 <= position < length:
        return position
    if mode == "zeros":
        return None
    if mode == "replicate":
        return min(max(position, 0), length - 1)
    if mode == "circular":
        return position % length
    return -position if position < 0 else 2 * (length - 1) - position  # reflect


def patches(conv: Any, x: Tensor, output_shape: torch.Size) -> Tensor:
    """batch, groups, output positions, (channels of the group x kernel): for x with a batch dimension."""
    before = padding_before(conv)
    per_group = conv.in_channels // conv.groups
    kernel = list(itertools.product(*map(range, conv.kernel_size)))
    positions = list(itertools.product(*map(range, output_shape)))
    numbers = x.numpy()
    gathered = np.zeros((len(x), conv.groups, len(positions), per_group * len(kernel)))
    for n, group, (p, position) in itertools.product(range(len(x)), range(conv.groups), enumerate(positions)):
        for channel, (k, offset) in itertools.product(range(per_group), enumerate(kernel)):
            where = [
                inside(at * stride + o * dilation - front, length, conv.padding_mode)
                for at, stride, o, dilation, front, length in zip(
                    position, conv.stride, offset, conv.dilation, before, x.shape[2:], strict=True
                )
            ]
            if None not in where:
                value = numbers[(n, group * per_group + channel, *where)]
                gathered[n, group, p, channel * len(kernel) + k] = value
    return torch.from_numpy(gathered)
