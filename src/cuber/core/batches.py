"""Functions on batches of any structure: tensors, tuples such as ``(x, y)``, dictionaries, and nestings of them."""

from __future__ import annotations

import copy
import warnings
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from cuber.core import distributed
from cuber.errors import CuberError, CuberWarning

Batch = Any

NO_BATCH = "the loader yields no batch: give begin_task and end_task the task's training data"


def map_tensors(batch: Batch, function: Callable[[Tensor], Any]) -> Batch:
    """Return the batch with every tensor in it replaced by ``function(tensor)``."""
    if isinstance(batch, Tensor):
        return function(batch)
    return _map_items(batch, lambda value: map_tensors(value, function))


def _map_items(batch: Batch, function: Callable[[Any], Any]) -> Batch:
    """Return a container of the same type with ``function`` applied to its direct items."""
    if isinstance(batch, MutableMapping):
        # A shallow copy of an unknown mapping type may be a view of the same data.
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
    """Return the number of samples in a batch.

    It is the length of the first tensor that is a direct item of the batch, else of the first list of other values
    there, else of the first nested tensor, else 1.
    """
    lengths, lists = _lengths(batch), [value for value in _items(batch) if _is_sequence(value)]
    lengths += [len(v) for v in lists if not all(isinstance(item, Tensor) or _is_sequence(item) for item in v)]
    map_tensors(batch, lambda tensor: lengths.append(len(tensor)) if tensor.dim() else None)
    return lengths[0] if lengths else 1


def _lengths(batch: Batch) -> list[int]:
    """Return the lengths of the tensors that are direct items of a batch."""
    return [len(value) for value in _items(batch) if isinstance(value, Tensor) and value.dim()]


def _items(batch: Batch) -> list[Any]:
    if isinstance(batch, MutableMapping):
        return list(batch.values())
    return list(batch) if isinstance(batch, list | tuple) else [batch]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple) and not hasattr(value, "_fields")


def first(batch: Batch, count: int) -> Batch:
    """Return the first ``count`` samples, or the whole batch if samples have several rows in one of its tensors."""
    total = size(batch)
    several_rows = any(length > total > 0 and length % total == 0 for length in _lengths(batch))
    return batch if several_rows else part(batch, slice(count))


def part(batch: Batch, which: slice) -> Batch:
    """Slice the samples of a batch: all its tensors, and the lists that are its direct items."""
    total = size(batch)

    def cut(tensor: Tensor) -> Tensor:
        return tensor[which] if _has_length(tensor, total) else tensor

    def cut_item(value: Any) -> Any:
        is_list = _is_sequence(value) and len(value) == total and not all(_has_length(item, total) for item in value)
        return type(value)(value[which]) if is_list else map_tensors(value, cut)

    return cut(batch) if isinstance(batch, Tensor) else _map_items(batch, cut_item)


def _has_length(value: Any, length: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == length


def map_samples(batch: Batch, function: Callable[[Tensor], Any]) -> Batch:
    """Return the batch with every tensor that has one row per sample replaced by ``function(tensor)``."""
    total = size(batch)
    return map_tensors(batch, lambda tensor: function(tensor) if _has_length(tensor, total) else tensor)


def device_of(model: nn.Module) -> torch.device:
    """Return the device that batches for a model must be on: that of its first parameter."""
    parameter = _first_parameter(model)
    return torch.device("cpu") if parameter is None else parameter.device


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """Return ``next(module.parameters())``, without visiting all modules: it is needed in every step."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    found = (_first_parameter(child) for child in module._modules.values() if child is not None)
    return next((parameter for parameter in found if parameter is not None), None)


def to(batch: Batch, device: torch.device) -> Batch:
    """Move a batch to a device; what is in pinned memory while the program goes on."""
    if device.type != "cuda":
        return map_tensors(batch, lambda tensor: tensor.to(device))
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()))


class Round(NamedTuple):
    """One batch of each process, in the order of their ranks."""

    batch: Batch | None
    """That of this process; None: its loader has no more."""
    start: int
    """Number of samples before this batch, of all processes."""
    end: int
    """Number of samples up to the end of the round."""


def rounds(loader: Iterable[Batch], count: float = float("inf")) -> Iterator[Round]:
    """Iterate over the loaders of all processes side by side, up to the round that has sample number ``count``."""
    rest, end = iter(loader), 0
    while end < count:
        batch = next(rest, None)
        sizes = distributed.gather_count(-1 if batch is None else size(batch))
        if max(sizes) < 0:
            return
        start = end + sum(max(0, samples) for samples in sizes[: distributed.rank()])
        end += sum(max(0, samples) for samples in sizes)
        yield Round(batch, start, end)


def sendable(batch: Batch) -> Batch:
    """Return a copy for other processes: on the CPU, without the rest of a tensor of which it is a part."""
    return map_tensors(batch, lambda tensor: tensor.detach().cpu().clone()) if distributed.is_active() else batch


def of_all_processes(loader: Iterable[Batch]) -> Iterator[Batch]:
    """Iterate over the batches of all processes' loaders."""
    if not distributed.is_active():
        yield from loader
        return
    for batch, *_ in rounds(loader):
        shared = distributed.gather(sendable(batch))
        yield from (batch for batch in shared if batch is not None)


def take(loader: Iterable[Batch], count: int) -> list[Batch]:
    """Return the first ``count`` samples of a loader as batches, or all of them if it has fewer.

    Of several processes each takes its own part of them, at least one sample.
    """
    # A loader that was given a batch sampler, as Accelerate makes them, has a sequential sampler that it does not use.
    sampler = None
    if isinstance(loader, DataLoader):
        sampler = getattr(loader if loader.batch_sampler is None else loader.batch_sampler, "sampler", None)
    if isinstance(sampler, SequentialSampler) and len(sampler) > count:
        warnings.warn(
            f"only the first {count} of {len(sampler)} samples are used, and this DataLoader does not shuffle, so what "
            "the other samples need may not be protected; pass shuffle=True to the DataLoader",
            CuberWarning,
            stacklevel=4,
        )
    taken: list[Batch] = []
    for batch, start, _ in rounds(loader, count):
        if batch is not None and (start < count or not taken):
            taken.append(first(batch, max(1, count - start)))
    if not taken:
        raise CuberError(NO_BATCH)
    return taken


def joined(samples: list[Batch], limit: int) -> list[Batch]:
    """Concatenate consecutive tuples of tensors into batches of at most ``limit`` bytes.

    Batches of other types, and those whose tensors differ in shape, dtype or device, stay separate.
    """
    groups: list[list[Batch]] = []
    free, kind = 0, None
    for batch in samples:
        before, kind = kind, _kind(batch)
        needed = sum(tensor.nbytes for tensor in batch) if kind else 0
        if kind is None or kind != before or needed > free:
            groups.append([])
            free = limit
        groups[-1].append(batch)
        free -= needed
    return [
        group[0] if len(group) == 1 else type(group[0])(map(torch.cat, zip(*group, strict=True))) for group in groups
    ]


def _kind(batch: Batch) -> list[Any] | None:
    """Return what batches must have in common to be concatenated; None if this one cannot be."""
    if type(batch) not in (tuple, list) or not all(isinstance(tensor, Tensor) and tensor.dim() for tensor in batch):
        return None
    kind = [(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in batch]
    return kind if len({len(tensor) for tensor in batch}) == 1 else None


def steps(loader: Iterable[Batch]) -> int | None:
    """Return the number of batches of a loader, or None if it has no length."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def count(loader: Iterable[Batch]) -> int:
    """Count the samples of a loader, or of the loaders of all processes, by iterating over it."""
    samples = int(distributed.sum_numbers(sum(map(size, loader)))[0])
    if not samples:
        raise CuberError(NO_BATCH)
    return samples


def check_loader(loader: object, verb: str) -> None:
    """Raise :class:`CuberError` unless the loader can be iterated over more than once."""
    if isinstance(loader, Iterator):
        raise CuberError(f"{verb}: this loader can be read only once (a generator); give a DataLoader or a list")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise CuberError(f"{verb} takes the task's training data as a loader, not a {type(loader).__name__}")


def check_pair(batch: Any) -> None:
    """Raise unless a batch is ``(input, target)``."""
    if not (isinstance(batch, list | tuple) and len(batch) == 2):
        raise CuberError(
            f"the loader yields a {type(batch).__name__} where (input, target) is expected: "
            "give the learner a forward=lambda model, batch: loss"
        )


def check_loss(loss: Any, task: int) -> None:
    """Raise unless a task can begin with this loss."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise CuberError("the loss must be a tensor with one value, a mean over the batch")
    if not bool(loss.isfinite()):
        raise CuberError(f"task {task}: the loss is {float(loss)} before the first step; check the inputs")


@contextmanager
def explained(beginning: str) -> Iterator[None]:
    """While open, report any exception of a user's model or loss as ``CuberError(f"{beginning}: {reason}")``."""
    try:
        yield
    except CuberError:
        raise
    except Exception as error:
        raise CuberError(f"{beginning}: {' '.join(str(error).split())}") from error
