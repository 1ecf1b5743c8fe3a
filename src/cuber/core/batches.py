"""Batches of any make: ``(x, y)``, dictionaries, tensors, and what lies inside them."""

from __future__ import annotations

import copy
import warnings
from collections import UserDict
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
    return _map_parts(batch, lambda value: map_tensors(value, function))


def _map_parts(batch: Batch, function: Callable[[Any], Any]) -> Batch:
    """The same batch with everything that lies directly in it replaced; whatever it is made of, it stays."""
    if isinstance(batch, MutableMapping):
        # Of a mapping that we do not know, a shallow copy may be another view of the same data.
        mapped = copy.copy(batch) if isinstance(batch, dict | UserDict) else copy.deepcopy(batch)
        for key, value in batch.items():
            mapped[key] = function(value)
        return mapped
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(function, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(function, batch))
    return batch


def size(batch: Batch) -> int:
    """The number of samples: how long tensors are that lie directly in the batch, or lists of other things there.

    Where there are neither, as long as the first tensor further inside; 1 where there is none.
    """
    direct = _parts(batch)
    lengths = [len(value) for value in direct if isinstance(value, Tensor) and value.dim()]
    lengths += [len(value) for value in direct if _is_sequence(value) and not all(map(_holds_tensors, value))]
    map_tensors(batch, lambda tensor: lengths.append(len(tensor)) if tensor.dim() else None)
    return lengths[0] if lengths else 1


def _parts(batch: Batch) -> list[Any]:
    if isinstance(batch, MutableMapping):
        return list(batch.values())
    return list(batch) if isinstance(batch, list | tuple) else [batch]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple) and not hasattr(value, "_fields")


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or _is_sequence(value)


def first(batch: Batch, count: int) -> Batch:
    """The first ``count`` samples of a batch; all of it where a sample has several rows, and we cannot know which."""
    whole = size(batch)
    lengths = [len(value) for value in _parts(batch) if isinstance(value, Tensor) and value.dim()]
    several = any(length > whole > 0 and length % whole == 0 for length in lengths)
    return batch if several else part(batch, slice(count))


def part(batch: Batch, which: slice) -> Batch:
    """Some samples of a batch: of its tensors, and of lists that lie directly in it."""
    whole = size(batch)

    def cut(tensor: Tensor) -> Tensor:
        return tensor[which] if _has_length(tensor, whole) else tensor

    def of_part(value: Any) -> Any:
        listed = _is_sequence(value) and len(value) == whole and not all(_has_length(item, whole) for item in value)
        return type(value)(value[which]) if listed else map_tensors(value, cut)

    return cut(batch) if isinstance(batch, Tensor) else _map_parts(batch, of_part)


def _has_length(value: Any, length: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == length


def map_samples(batch: Batch, function: Callable[[Tensor], Any]) -> Batch:
    """The same batch with every tensor in it that has an entry for each sample replaced by ``function(tensor)``."""
    whole = size(batch)
    return map_tensors(batch, lambda tensor: function(tensor) if _has_length(tensor, whole) else tensor)


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


def steps(loader: Iterable[Batch]) -> int | None:
    """How many batches a loader yields; None where it cannot say, as if nobody has counted its samples."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


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
