"""Batches of any make: ``(x, y)``, dictionaries, tensors, and what lies inside them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from cuber.errors import CuberError, CuberWarning

Batch = Any

NO_BATCH = "the loader yields no batch: give begin_task and end_task the task's training data"


def map_tensors(batch: Batch, function: Callable[[Tensor], Any]) -> Batch:
    """The same batch with every tensor in it replaced by ``function(tensor)``."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, MutableMapping):
        mapped = copy.copy(batch)  # whatever kind of mapping it is, it stays one
        for key, value in batch.items():
            mapped[key] = map_tensors(value, function)
        return mapped
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, function) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, function) for value in batch)
    return batch


def size(batch: Batch) -> int:
    """The number of samples: the length of the first tensor in the batch that has one, 1 where there is none."""
    lengths: list[int] = []
    map_tensors(batch, lambda tensor: lengths.append(len(tensor)) if tensor.dim() else None)
    return lengths[0] if lengths else 1


def first(batch: Batch, count: int) -> Batch:
    """The first ``count`` samples of a batch."""
    return part(batch, slice(count))


def part(batch: Batch, which: slice) -> Batch:
    """Some samples of a batch."""
    return map_samples(batch, lambda tensor: tensor[which])


def map_samples(batch: Batch, function: Callable[[Tensor], Any]) -> Batch:
    """The same batch with every tensor in it that has an entry for each sample replaced by ``function(tensor)``."""
    whole = size(batch)
    return map_tensors(batch, lambda tensor: function(tensor) if tensor.dim() and len(tensor) == whole else tensor)


def to(batch: Batch, device: torch.device) -> Batch:
    """The batch on another device."""
    return map_tensors(batch, lambda tensor: tensor.to(device))


def take(loader: Iterable[Batch], count: int) -> list[Batch]:
    """The first ``count`` samples that a loader yields, as batches; all of them where it has fewer."""
    taken: list[Batch] = []
    missing = count
    if isinstance(loader, DataLoader) and isinstance(loader.sampler, SequentialSampler):
        samples = len(loader.sampler)
        if samples > count:
            warnings.warn(
                f"only the first {count} of {samples} samples are looked at, and this DataLoader does not shuffle: "
                "what the others need may go unprotected; give it shuffle=True",
                CuberWarning,
                stacklevel=4,
            )
    for batch in loader:
        taken.append(first(batch, missing))
        missing -= size(taken[-1])
        if missing <= 0:
            break
    if not taken:
        raise CuberError(NO_BATCH)
    return taken


def joined(samples: list[Batch], limit: int) -> list[Batch]:
    """Pairs and other tuples of tensors joined to fewer and larger ones of up to ``limit`` bytes, in the same order.

    Batches of another make, and those whose samples differ in shape or kind, stay as they are.
    """
    larger: list[list[Batch]] = []
    room = 0
    for batch in samples:
        needed = sum(tensor.nbytes for tensor in batch) if _is_plain(batch) else limit + 1
        if not larger or needed > room or _kind(larger[-1][-1]) != _kind(batch):
            larger.append([])
            room = limit
        larger[-1].append(batch)
        room -= needed
    return [
        group[0] if len(group) == 1 else type(group[0])(map(torch.cat, zip(*group, strict=True))) for group in larger
    ]


def _is_plain(batch: Batch) -> bool:
    if type(batch) not in (tuple, list) or not all(isinstance(tensor, Tensor) and tensor.dim() for tensor in batch):
        return False
    return len({len(tensor) for tensor in batch}) == 1


def _kind(batch: Batch) -> list[Any]:
    return [(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in batch]


def count(loader: Iterable[Batch]) -> int:
    """How many samples a loader yields, counted."""
    samples = sum(map(size, loader))
    if not samples:
        raise CuberError(NO_BATCH)
    return samples


def check_loader(loader: object, verb: str) -> None:
    """Raise a sentence unless a loader can be read again and again."""
    if isinstance(loader, Iterator):
        raise CuberError(f"{verb}: this loader can be read only once (a generator); give a DataLoader or a list")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise CuberError(f"{verb} takes the task's training data as a loader, not a {type(loader).__name__}")
