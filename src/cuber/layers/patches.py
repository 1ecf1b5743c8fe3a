"""The patches that a convolution's kernel sees, and sums over them that need not look at each.

A patch and the next one see the same numbers, at places of the kernel that lie a shift apart. So what places i and j
multiply to, summed over all patches, is known from i - shift and j - shift, but for the first patches and the last:

    G[i, j]  =  G[i - shift, j - shift]  -  first[i - shift, j - shift]  +  last[i, j]

With 3 x 3 kernels at stride 1, 15 of the 81 blocks of G are multiplied out; the others are filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

import torch
from torch import Tensor

from cuber.subspace import NUMBERS_AT_ONCE, in_float64

WORTH_IT = 0.2
"""Below which fraction of the products, or with edges of half of the patches, it is not worth while to fill them in."""


@dataclass(frozen=True)
class Step:
    """Along one dimension, the patch ``patches`` further on sees at place i what this one sees at i + ``shift``."""

    patches: int
    shift: int

    @classmethod
    def of(cls, stride: int, dilation: int) -> Step:
        common = gcd(stride, dilation)
        return cls(dilation // common, stride // common)


@dataclass(frozen=True)
class Patches:
    """The patches of ``x`` (batch, channels, space...), which has been padded."""

    x: Tensor
    kernel: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]

    @property
    def spatial(self) -> int:
        return len(self.kernel)

    @property
    def count(self) -> int:
        """How many there are."""
        return self._windows(self.x).shape[: 1 + self.spatial].numel()

    def vectors(self) -> Tensor:
        """Each as a row, in the order of ``weight.flatten(1)``, sample by sample."""
        return self._windows(self.x).movedim(-1, 1 + self.spatial).flatten(1 + self.spatial).flatten(0, self.spatial)

    def total(self) -> Tensor:
        """The sum of the vectors, in float64."""
        windows = self._windows(in_float64(self.x))
        return windows.sum(dim=tuple(range(1 + self.spatial))).movedim(-1, 0).flatten()

    def products(self) -> Tensor:
        """The sum of ``v v'`` over the vectors v, d x d, in float64."""
        numbers = self._windows(self.x)[:1].numel()
        parts = self.x.split(max(1, NUMBERS_AT_ONCE // max(1, numbers)))
        products = reduce(torch.add, map(self._products, parts))
        channels_first = products.movedim(self.spatial, 0).movedim(-1, 1 + self.spatial)
        return channels_first.flatten(1 + self.spatial).flatten(0, self.spatial)

    def _products(self, x: Tensor) -> Tensor:
        """Of some samples: places and channels, twice."""
        # The channels of a place beside each other: patches are then written down in long pieces.
        windows = self._windows(in_float64(x).movedim(1, -1).contiguous().movedim(-1, 1))
        return _products(windows, windows, [Step.of(*each) for each in zip(self.stride, self.dilation, strict=True)])

    def _windows(self, x: Tensor) -> Tensor:
        """Batch, positions..., places of the kernel..., channels: not a copy."""
        x = x.movedim(1, -1)
        for dim, (kernel, stride, dilation) in enumerate(
            zip(self.kernel, self.stride, self.dilation, strict=True), start=1
        ):
            x = x.unfold(dim, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
        return x.movedim(1 + self.spatial, -1)


def _products(left: Tensor, right: Tensor, steps: Sequence[Step], dim: int = 0) -> Tensor:
    """What the places of ``left`` and of ``right`` multiply to: places and channels of one, then of the other.

    Both are windows of the same patches. Along the dimensions before ``dim`` they may have been cut to some places;
    from there on they have all, and what patches share is computed once.
    """
    spatial = len(steps)
    if dim == spatial:
        one, other = (windows.flatten(1 + spatial).flatten(0, spatial) for windows in (left, right))
        return (one.T @ other).view(left.shape[1 + spatial :] + right.shape[1 + spatial :])
    place = 1 + spatial + dim  # of the windows; and of the products, those of ``right``
    step, patches, places = steps[dim], left.shape[1 + dim], left.shape[place]
    rest = max(0, places - step.shift)
    known = rest * (places if right is left else rest) / places**2
    if known < WORTH_IT or 2 * step.patches >= patches:
        return _products(left, right, steps, dim + 1)

    def at_edge(patch: int, first_place: int) -> Tensor:
        cut = [
            windows.narrow(1 + dim, patch, step.patches).narrow(place, first_place, rest)
            for windows in ([left] if right is left else [left, right])
        ]
        return _products(cut[0], cut[-1], steps, dim + 1)

    products = left.new_empty(left.shape[1 + spatial :] + right.shape[1 + spatial :])
    rows = _products(left.narrow(place, 0, step.shift), right, steps, dim + 1)
    products.narrow(dim, 0, step.shift).copy_(rows)
    if right is left:
        columns = rows.narrow(place, step.shift, rest)
        columns = columns.permute(*range(1 + spatial, 2 + 2 * spatial), *range(1 + spatial))
    else:
        columns = _products(left.narrow(place, step.shift, rest), right.narrow(place, 0, step.shift), steps, dim + 1)
    products.narrow(dim, step.shift, rest).narrow(place, 0, step.shift).copy_(columns)
    change = at_edge(patches - step.patches, step.shift) - at_edge(0, 0)
    for i in range(rest):
        before = products.select(dim, i).narrow(place - 1, 0, rest)
        products.select(dim, i + step.shift).narrow(place - 1, step.shift, rest).copy_(before + change.select(dim, i))
    return products
