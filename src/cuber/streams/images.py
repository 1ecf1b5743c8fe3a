"""Images as they lie on disk, made into what a network takes batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cuber.errors import CuberError


@dataclass(frozen=True, eq=False)
class Transform:
    """Bytes (N, H, W) or (N, H, W, C) -> normalized numbers (N, C, H, W), or (N, pixels) where ``order`` is given.

    >>> Transform(mean=(0.5,), std=(0.5,))(np.full((1, 2, 2), 255, np.uint8)).tolist()
    [[[[1.0, 1.0], [1.0, 1.0]]]]
    """

    mean: tuple[float, ...]
    """Of each channel, for pixels in [0, 1] and after the padding."""
    std: tuple[float, ...]
    padding: int = 0
    """Black pixels on every side."""
    channels: int | None = None
    """So many copies of a grey image."""
    order: Tensor | None = None
    """Which pixel comes first, second, ... in a row of all of them."""

    def __call__(self, images: np.ndarray) -> Tensor:
        x = torch.from_numpy(images)
        if self.order is not None:
            x = x.flatten(1).index_select(1, self.order)
        else:
            x = x.unsqueeze(1) if x.dim() == 3 else x.permute(0, 3, 1, 2)
        if self.padding:
            x = functional.pad(x, (self.padding,) * 4)
        x = x.to(torch.float32, memory_format=torch.contiguous_format)
        if len(self.mean) == 1:  # numbers, where they will do, are quicker than tensors: batches may be small
            x.mul_(1 / (255 * self.std[0])).add_(-self.mean[0] / self.std[0])
        else:
            mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
            x.div_(255 * std).sub_(mean / std)
        return x if self.channels is None else x.expand(-1, self.channels, -1, -1).contiguous()

    def shape(self, images: np.ndarray) -> tuple[int, ...]:
        """What one image becomes."""
        return tuple(self(np.zeros((1, *images.shape[1:]), np.uint8)).shape[1:])


class ImageSplit:
    """Some rows of an array of images, usually one that is mapped from disk: they stay there until a batch needs them.

    ``y`` is the label of each row, as the task counts its classes.
    """

    def __init__(self, images: np.ndarray, rows: Tensor, y: Tensor, transform: Transform) -> None:
        self.images = np.asarray(images)  # a view that indexes faster than a numpy.memmap
        self.rows = rows
        self.y = y
        self.transform = transform
        if len(rows) != len(y):
            raise CuberError(f"{len(rows)} images but {len(y)} labels")
        self.shape = transform.shape(self.images)

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, indices: Tensor) -> ImageSplit:
        """The samples at ``indices``, in that order; no image is copied."""
        return ImageSplit(self.images, self.rows[indices], self.y[indices], self.transform)

    def batches(self, chunks: Sequence[Tensor], generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """A batch for each chunk of indices."""
        for chunk in chunks:
            rows = self.rows.index_select(0, chunk)
            yield self.transform(self.images[rows.numpy()]), self.y.index_select(0, chunk)
