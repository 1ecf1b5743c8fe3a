"""Splits: the training, validation or test samples of a task, from tensors, image arrays or a torch Dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, default_collate

from cuber.errors import CuberError
from cuber.streams.reading import present_reading, read_batches

Data = Any
"""Accepted by :func:`as_split`: ``(x, y)`` of tensors or arrays, a torch Dataset of such pairs, or a split."""


@dataclass(frozen=True, eq=False)
class TensorSplit:
    """Inputs and labels in memory."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])

    def subset(self, indices: Tensor) -> TensorSplit:
        """Return the samples at ``indices``, in that order."""
        return TensorSplit(self.x[indices], self.y[indices])

    def batches(self, chunks: Sequence[Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a batch for each chunk of indices."""
        return map(self.read, chunks)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return one batch."""
        return scale_bytes(self.x.index_select(0, indices)), self.y.index_select(0, indices)


@dataclass(frozen=True, eq=False)
class Transform:
    """Convert uint8 images, (N, H, W) or (N, H, W, C), to normalized float tensors (N, C, H, W).

    ``mean`` and ``std`` are those of each channel, for pixels in [0, 1] and after ``padding`` black pixels were added
    on each side. ``channels`` is the number of times to repeat the channel of a grayscale image. With ``order``, a
    permutation of the pixels, the result is (N, pixels).

    >>> Transform(mean=(0.5,), std=(0.5,))(np.full((1, 2, 2), 255, np.uint8)).tolist()
    [[[[1.0, 1.0], [1.0, 1.0]]]]
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int = 0
    channels: int | None = None
    order: Tensor | None = None

    def __call__(self, images: np.ndarray) -> Tensor:
        x = torch.from_numpy(images)
        if self.order is not None:
            x = x.flatten(1).index_select(1, self.order)
        else:
            x = x.unsqueeze(1) if x.dim() == 3 else x.permute(0, 3, 1, 2)
        if self.padding:
            x = functional.pad(x, (self.padding,) * 4)
        x = x.to(torch.float32, memory_format=torch.contiguous_format)
        if len(self.mean) == 1:  # scalars are faster than tensors for small batches
            x.mul_(1 / (255 * self.std[0])).add_(-self.mean[0] / self.std[0])
        else:
            mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
            x.div_(255 * std).sub_(mean / std)
        return x if self.channels is None else x.expand(-1, self.channels, -1, -1).contiguous()


class ImageSplit:
    """Rows of a uint8 image array, usually memory-mapped, that are read and transformed batch by batch."""

    def __init__(self, images: np.ndarray, rows: Tensor, y: Tensor, transform: Transform) -> None:
        self.images = np.asarray(images)  # a view that indexes faster than a numpy.memmap
        self.rows = rows
        self.y = y
        self.transform = transform
        self.shape = tuple(transform(np.zeros((1, *images.shape[1:]), np.uint8)).shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, indices: Tensor) -> ImageSplit:
        """Return the samples at ``indices``, in that order, without copying images."""
        return ImageSplit(self.images, self.rows[indices], self.y[indices], self.transform)

    def batches(self, chunks: Sequence[Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a batch for each chunk of indices."""
        return read_batches(self.read, chunks, seed) if present_reading().workers else map(self.read, chunks)

    def read(self, indices: Tensor | list[int]) -> tuple[Tensor, Tensor]:
        """Return one batch."""
        chunk = torch.as_tensor(indices)
        rows = self.rows.index_select(0, chunk)
        return self.transform(self.images[rows.numpy()]), self.y.index_select(0, chunk)


@dataclass(eq=False)
class DatasetSplit:
    """A torch Dataset of ``(x, label)`` pairs, whose samples are checked when they are read.

    ``where`` starts error messages; :class:`Task` sets ``classes``, None for targets that are no labels.
    """

    dataset: Dataset[Any]
    where: str
    classes: int | None = 0

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def subset(self, indices: Tensor) -> DatasetSplit:
        """Return the samples at ``indices``, in that order."""
        return DatasetSplit(Subset(self.dataset, indices.tolist()), self.where, self.classes)

    def batches(self, chunks: Sequence[Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a batch for each chunk of indices; what the Dataset draws is seeded for each."""
        return read_batches(self.read, chunks, seed)

    def read(self, indices: Tensor | list[int]) -> tuple[Tensor, Tensor]:
        """Return one batch, with random numbers as they come."""
        which = indices.tolist() if isinstance(indices, Tensor) else indices
        together = getattr(self.dataset, "__getitems__", None)  # as a DataLoader reads
        return self._collate(together(which) if together else [self.dataset[index] for index in which])

    def _collate(self, samples: list[Any]) -> tuple[Tensor, Tensor]:
        first = samples[0]
        if not (isinstance(first, tuple | list) and len(first) == 2):
            raise CuberError(f"{self.where}: the Dataset yields a {type(first).__name__} where (x, label) is expected")
        try:
            x, y = default_collate(samples)
        except (TypeError, RuntimeError) as error:
            raise CuberError(f"{self.where}: the Dataset's samples do not make a batch: {error}") from error
        x = x if isinstance(first[0], Tensor) else _single(x)
        _check_finite(x, self.where)
        if self.classes is None:
            return scale_bytes(x), _targets(y if isinstance(first[1], Tensor) else _single(y), self.where)
        y = _labels(y, self.where)
        check_labels(y, self.classes, self.where)
        return scale_bytes(x), y


Split = TensorSplit | ImageSplit | DatasetSplit


def as_split(data: Data, where: str, *, labeled: bool = True) -> Split:
    """Convert data to a split and check it; ``where`` starts every error message. Not ``labeled``: with any targets."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, DatasetSplit):
        split: Split = replace(data)  # its task will say how many classes it has
    elif isinstance(data, Split):
        split = data
    elif isinstance(data, Dataset):
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise CuberError(f"{where}: the Dataset has no length; give one that can be indexed")
        split = DatasetSplit(data, where)
    elif isinstance(data, tuple | list) and len(data) == 2:
        x, y = _tensor(data[0], where, "inputs"), (_labels if labeled else _targets)(data[1], where)
        if x.is_complex() or x.dtype == torch.bool:
            raise CuberError(f"{where}: inputs of type {str(x.dtype).removeprefix('torch.')} are not numbers")
        if x.dim() == 0 or len(x) != len(y):
            raise CuberError(
                f"{where}: {len(x) if x.dim() else 1} inputs but {len(y)} {'labels' if labeled else 'targets'}"
            )
        _check_finite(x, where)
        split = TensorSplit(x, y)
    else:
        raise CuberError(f"{where}: give (x, y) or a torch Dataset, not a {type(data).__name__}")
    if len(split) == 0:
        raise CuberError(f"{where}: there are no samples in it")
    return split


def check_labels(y: Tensor, classes: int, where: str) -> None:
    """Raise :class:`CuberError` unless every label is in ``range(classes)``."""
    wrong = y[(y < 0) | (y >= classes)]
    if len(wrong):
        raise CuberError(f"{where}: label {int(wrong[0])} is not one of the {classes} classes 0 to {classes - 1}")


def scale_bytes(x: Tensor) -> Tensor:
    """Convert uint8 inputs to floats in [0, 1]; return others unchanged."""
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def _labels(y: Any, where: str) -> Tensor:
    y = _tensor(y, where, "labels")
    if y.dim() != 1:
        raise CuberError(f"{where}: labels must be one whole number per sample, not of shape {tuple(y.shape)}")
    if y.is_floating_point() and not bool((y == y.round()).all()):  # NaN is not equal to itself
        raise CuberError(f"{where}: labels must be whole numbers, not {float(y[y != y.round()][0]):g}")
    return y.long()


def _targets(y: Any, where: str) -> Tensor:
    """Targets of any type and shape, one for each sample."""
    y = _tensor(y, where, "targets")
    if y.dim() == 0:
        raise CuberError(f"{where}: the targets must have one entry for each sample, not one for all")
    _check_finite(y, where, "targets")
    return y


def _single(values: Any) -> Any:
    """Numbers of Python and numpy are float64 by default; tensors keep their dtype."""
    return values.float() if isinstance(values, Tensor) and values.dtype == torch.float64 else values


def _tensor(values: Any, where: str, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
        # numpy's default dtype is float64, so convert it; the dtype of a tensor is kept.
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise CuberError(f"{where}: the {what} are not an array of numbers") from error


def _check_finite(x: Tensor, where: str, what: str = "inputs") -> None:
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise CuberError(f"{where}: some {what} are NaN or infinite")
