"""One part of a task's data (training, validation or test), whatever it was given as."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from cuber.errors import CuberError
from cuber.streams.images import ImageSplit

Data = Any
"""What a part may be given as: ``(x, y)`` of tensors or arrays, a torch Dataset of such pairs, or a part."""


class TensorSplit:
    """Inputs and labels in memory; batches are slices, with no Python per sample."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x = x
        self.y = y

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.x.shape[1:])

    def subset(self, indices: Tensor) -> TensorSplit:
        """The samples at ``indices``, in that order."""
        return TensorSplit(self.x[indices], self.y[indices])

    def batches(self, chunks: Sequence[Tensor], generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """A batch for each chunk of indices."""
        x, y = self.x, self.y
        for chunk in chunks:
            yield for_network(x.index_select(0, chunk)), y.index_select(0, chunk)


class DatasetSplit:
    """A torch Dataset of ``(x, label)`` pairs, checked as its batches come."""

    def __init__(self, dataset: Dataset[Any], where: str, classes: int = 0) -> None:
        self.dataset = dataset
        self.where = where
        self.classes = classes
        """Set by the task that it becomes a part of."""

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def subset(self, indices: Tensor) -> DatasetSplit:
        """The samples at ``indices``, in that order."""
        return DatasetSplit(Subset(self.dataset, indices.tolist()), self.where, self.classes)

    def batches(self, chunks: Sequence[Tensor], generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """A batch for each chunk of indices."""
        indices = [chunk.tolist() for chunk in chunks]
        # Its own generator: a DataLoader without one draws from the global one each time that it is iterated.
        yield from DataLoader(self.dataset, batch_sampler=indices, collate_fn=self._collate, generator=generator)

    def _collate(self, samples: list[Any]) -> tuple[Tensor, Tensor]:
        first = samples[0]
        if not (isinstance(first, tuple | list) and len(first) == 2):
            raise CuberError(f"{self.where}: the Dataset yields a {type(first).__name__} where (x, label) is expected")
        try:
            x, y = default_collate(samples)
        except (TypeError, RuntimeError) as error:
            raise CuberError(f"{self.where}: the Dataset's samples do not make a batch: {error}") from error
        if x.dtype == torch.float64 and not isinstance(first[0], Tensor):
            x = x.float()
        _check_finite(x, self.where)
        y = _labels(y, self.where)
        check_labels(y, self.classes, self.where)
        return for_network(x), y


Split = TensorSplit | ImageSplit | DatasetSplit


def as_part(data: Data, where: str) -> Split:
    """The part that ``data`` describes; ``where`` begins every complaint about it."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, Split):
        part: Split = data
    elif isinstance(data, Dataset):
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise CuberError(f"{where}: the Dataset has no length; give one that can be indexed")
        part = DatasetSplit(data, where)
    elif isinstance(data, tuple | list) and len(data) == 2:
        part = TensorSplit(_inputs(data[0], where), _labels(data[1], where))
        if part.x.dim() == 0 or len(part.x) != len(part.y):
            raise CuberError(f"{where}: {len(part.x) if part.x.dim() else 1} inputs but {len(part.y)} labels")
        _check_finite(part.x, where)
    else:
        raise CuberError(f"{where}: give (x, y) or a torch Dataset, not a {type(data).__name__}")
    if len(part) == 0:
        raise CuberError(f"{where}: there are no samples in it")
    return part


def check_labels(y: Tensor, classes: int, where: str) -> None:
    """Raise a sentence unless every label is one of ``range(classes)``."""
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise CuberError(f"{where}: label {wrong} is not one of the {classes} classes 0 to {classes - 1}")


def for_network(x: Tensor) -> Tensor:
    """Images kept as bytes become numbers from 0 to 1 on their way to the network; all else is as it was given."""
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def _inputs(x: Any, where: str) -> Tensor:
    x = _tensor(x, where, "inputs")
    if x.is_complex() or x.dtype == torch.bool:
        raise CuberError(f"{where}: inputs of type {str(x.dtype).removeprefix('torch.')} are not numbers")
    return x


def _labels(y: Any, where: str) -> Tensor:
    y = _tensor(y, where, "labels")
    if y.dim() != 1:
        raise CuberError(f"{where}: labels must be one whole number per sample, not of shape {tuple(y.shape)}")
    if y.is_floating_point() and not bool((y == y.round()).all()):  # NaN is not equal to itself
        raise CuberError(f"{where}: labels must be whole numbers, not {float(y[y != y.round()][0]):g}")
    return y.long()


def _tensor(values: Any, where: str, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
        # numpy's numbers are double by default, not by intention; a tensor's type is taken as meant.
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise CuberError(f"{where}: the {what} are not an array of numbers") from error


def _check_finite(x: Tensor, where: str) -> None:
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise CuberError(f"{where}: some inputs are NaN or infinite")
