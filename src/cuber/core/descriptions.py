"""One vector for each sample of a layer's input, whose density tells tasks apart."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cuber.core import masks
from cuber.layers import ProtectedLayer

GRID = 2
"""Cells of an image along each axis, whose means describe it."""
NEIGHBORS = 3
"""Side of the patches whose statistics describe an image."""
SMALLEST = 1e-3
"""Added to variances before their logarithm is taken: smaller ones do not count."""
MOST_POSITIONS = 2**12
"""Larger images are reduced to about this number of positions."""


def describe(layer: ProtectedLayer, x: Tensor, samples: int, real: Tensor | None = None) -> Tensor | None:
    """Return a vector for each sample, samples x D; None where the input has no row or rows for each sample.

    Args:
        layer: the layer that ``x`` is the input of.
        x: features, a sequence of features (described by mean and deviation over positions), or for a convolution an
            image (described by the statistics of its patches, and a small copy).
        samples: in the batch.
        real: which positions of a sequence are not padding, samples x positions; None: all.
    """
    if x.is_nested or x.layout != torch.strided or not x.is_floating_point() or not samples:
        return None
    axes = layer.dimensions_after_units
    if axes:
        return image(x.float(), axes) if x.dim() == axes + 2 and len(x) == samples else None
    sequences = masks.as_sequences(layer, x, real)
    if sequences is not None and real is not None:
        return sequence(sequences.float(), real.to(x.device))
    if x.dim() == 2 and len(x) == samples:
        return x.float()
    if len(x) == samples:
        x = x.flatten(1, -2)
    elif x.dim() == 2 and len(x) % samples == 0:  # all positions of all samples, one after another
        x = x.unflatten(0, (samples, -1))
    else:
        return None
    return sequence(x.float(), torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))


def sequence(x: Tensor, real: Tensor) -> Tensor:
    """Return mean and standard deviation over the real positions of sequences, samples x 2 d."""
    weight = real.unsqueeze(2) / real.sum(1).clamp_min(1).view(-1, 1, 1)
    mean = (weight * x).sum(1)
    variance = (weight * (x - mean.unsqueeze(1)).square()).sum(1)
    return torch.cat([mean, variance.sqrt()], dim=1)


def image(x: Tensor, axes: int) -> Tensor:
    """Return statistics of the patches of images, and the means of their cells, samples x D.

    Neighboring pixels and channels are decorrelated by cosine transforms, since variances along axes on which
    coordinates depend on each other would not tell a gray image from a colored one.

    Args:
        x: samples x channels x positions along each axis.
        axes: number of axes: 1 for signals, 2 for images, 3 for volumes.
    """
    pool: Any = getattr(functional, f"adaptive_avg_pool{axes}d")
    side = math.floor(MOST_POSITIONS ** (1 / axes))
    if any(size > side for size in x.shape[2:]):
        x = pool(x, [min(size, side) for size in x.shape[2:]])
    transformed = torch.tensordot(x, cosines(x.shape[1]).to(x), ([1], [1])).movedim(-1, 1)
    for axis in range(2, 2 + axes):
        patches = transformed.unfold(axis, min(NEIGHBORS, x.shape[axis]), 1)
        transform = cosines(patches.shape[-1]).to(x)
        transformed = torch.tensordot(patches, transform, ([-1], [1])).movedim(-1, 1).flatten(1, 2)
    flat = transformed.flatten(2)  # samples x frequencies of all axes and channels x positions
    mean = flat.mean(2)
    deviation = (flat - mean.unsqueeze(2)).square().mean(2).add(SMALLEST).log() / 2
    size = (flat.abs().mean(2) + math.sqrt(SMALLEST)).log()
    cells = pool(x, [min(GRID, size) for size in x.shape[2:]]).flatten(1)
    return torch.cat([mean, deviation, size, cells], dim=1)


def cosines(size: int) -> Tensor:
    """Return the orthonormal cosine transform of ``size`` numbers, one frequency in each row.

    >>> cosines(2)
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]])
    """
    frequency, place = torch.arange(size).unsqueeze(1), torch.arange(size) + 0.5
    matrix = torch.cos(math.pi * frequency * place / size)
    return matrix / matrix.norm(dim=1, keepdim=True)
