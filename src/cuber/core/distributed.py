"""All communication between the processes of data-parallel training.

Every function is for all processes to call, in the same order; each returns the same, to the bit, in all of them. In a
single process they return what they were given and cost nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn

from cuber.errors import CuberError

Value = TypeVar("Value")

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What ``torchrun`` tells each process."""
TIMEOUT = "CUBER_TIMEOUT"
"""Environment variable: seconds to wait for another process. One that has ended is noticed at once."""
DEFAULT_TIMEOUT = 300.0
DIFFERENT_GRADIENTS = (
    "the gradient of '{name}' differs between the processes: compute the loss by DistributedDataParallel(model), made "
    "after begin_task, or call learner.average_gradients() before each step"
)
DIFFERENT_WEIGHTS = (
    "end_task: '{name}' differs between the processes: train with the same optimizer in all of them, on machines of "
    "the same kind, and change weights in no other way"
)


class ProcessGroupError(CuberError):
    """Another process has ended, or does not answer."""


def is_active() -> bool:
    """Return whether this process is one of several."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return distributed.get_rank() if is_active() else 0


def processes() -> int:
    """Return the number of processes."""
    return distributed.get_world_size() if is_active() else 1


class Share(NamedTuple):
    """The part of a batch that one process computes with."""

    part: slice
    weight: float
    """Share in the mean over the batch; 0: the part is that of another process."""


def share(count: int) -> Share:
    """Divide a batch of ``count`` samples: each process gets a slice of at least two, for batch norm, or weight 0."""
    parts = max(1, min(processes(), count // 2))
    own = rank() if rank() < parts else 0
    start, end = count * own // parts, count * (own + 1) // parts
    return Share(slice(start, end), (end - start) / count if rank() < parts else 0.0)


# Python objects


def gather(value: Value) -> list[Value]:
    """Return the values of all processes, by rank."""
    if not is_active():
        return [value]
    values: list[Any] = [None] * processes()
    with _explained():
        distributed.all_gather_object(values, value)
    return values


def broadcast(value: Value) -> Value:
    """Return the value of the first process."""
    if not is_active():
        return value
    values = [value]
    with _explained():
        distributed.broadcast_object_list(values, src=0)
    return values[0]


def on_first(function: Callable[[], Value]) -> Value:
    """Call a function in the first process only; all return what it returned, or raise what it raised."""
    if not is_active():
        return function()
    outcome: tuple[Any, CuberError | None] = None, None
    if rank() == 0:
        try:
            outcome = function(), None
        except CuberError as error:
            outcome = None, error
    value, raised = broadcast(outcome)
    if raised is not None:
        raise raised
    return value


# Tensors


def sum_numbers(*numbers: float) -> list[float]:
    """Return the sum of each number over all processes."""
    if not is_active():
        return list(numbers)
    return sum_tensors([torch.tensor(numbers, dtype=torch.float64)])[0].tolist()


def gather_count(count: int) -> list[int]:
    """Return the numbers of all processes, by rank: one short message, where ``gather`` has two long ones."""
    if not is_active():
        return [count]
    return [round(number) for number in sum_numbers(*(count if i == rank() else 0 for i in range(processes())))]


def sum_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of each tensor over all processes, in one message for each type of number."""
    if not is_active():
        return list(tensors)
    sums = list(tensors)
    for group in _alike(tensors):
        flat = torch.cat([tensors[i].detach().flatten() for i in group])
        _all_reduce(flat)
        for i, part in zip(group, flat.split([tensors[i].numel() for i in group]), strict=True):
            sums[i] = part.reshape(tensors[i].shape)
    return sums


def sum_present(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor | None]:
    """Sum each tensor over the processes that have it; None where none has.

    Args:
        tensors: one for each of ``like``, or None.
        like: tensors of the same shapes, such as the parameters of gradients.
    """
    if not is_active() or not tensors:
        return list(tensors)
    # Whether a process has a tensor is one more number in the same message.
    pairs = list(zip(tensors, like, strict=True))
    values = [(torch.zeros_like(o) if t is None else t.to_dense()).flatten() for t, o in pairs]
    present = [o.new_tensor([float(t is not None)]) for t, o in pairs]
    told = [torch.cat(both) for both in zip(values, present, strict=True)]
    sums = sum_tensors(told)
    found = torch.stack([total[-1].float() for total in sums]).tolist()
    return [total[:-1].view_as(o) if has else None for total, o, has in zip(sums, like, found, strict=True)]


@torch.no_grad()
def average_(tensors: Iterable[Tensor], weight: float | None = None) -> None:
    """Replace each tensor by the mean over all processes; whole numbers by those of the first process.

    Args:
        weight: of this process; those of all add up to 1 (default: all count the same).
    """
    if not is_active():
        return
    tensors = list(tensors)
    weight = 1 / processes() if weight is None else weight
    own = [t * (weight if t.is_floating_point() else int(rank() == 0)) for t in tensors]
    for tensor, total in zip(tensors, sum_tensors(own), strict=True):
        tensor.copy_(total)


@torch.no_grad()
def broadcast_(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by that of the first process."""
    if not is_active():
        return
    tensors = list(tensors)
    for group in _alike(tensors):
        flat = _sendable(torch.cat([tensors[i].detach().flatten() for i in group]))
        with _explained():
            distributed.broadcast(flat, src=0)
        for i, part in zip(group, flat.split([tensors[i].numel() for i in group]), strict=True):
            tensors[i].copy_(part.reshape(tensors[i].shape))


def check_equal(tensors: Mapping[str, Tensor | None], problem: str) -> None:
    """Raise in all processes unless every tensor is the same in all of them, to the bit.

    Args:
        problem: what to say, with ``{name}`` for the name of the first tensor that is not.
    """
    if not is_active():
        return
    own = {name: None if tensor is None else _digest(tensor) for name, tensor in tensors.items()}
    digests = gather(own)
    for name in digests[0]:
        if any(other.get(name) != digests[0][name] for other in digests):
            raise CuberError(problem.format(name=name))


def _digest(tensor: Tensor) -> str:
    content = tensor.detach().to_dense().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(content.numpy().data, digest_size=16).hexdigest()


def _alike(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the positions of tensors with the same dtype and device, which make one message."""
    groups: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault((tensor.dtype, tensor.device), []).append(i)
    return list(groups.values())


def _all_reduce(flat: Tensor) -> None:
    sent = _sendable(flat)
    with _explained():
        distributed.all_reduce(sent)
    if sent is not flat:
        flat.copy_(sent)


def _sendable(tensor: Tensor) -> Tensor:
    """Return a tensor where the processes can exchange it: NCCL knows GPUs only."""
    return tensor.cuda() if distributed.get_backend() == "nccl" and tensor.device.type == "cpu" else tensor


@contextmanager
def _explained() -> Iterator[None]:
    """While open, report errors of communication in one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessGroupError(
            f"process {rank()} of {processes()} cannot reach another one, which has ended or does not answer "
            f"({_reason(error)}): start all of them again; a run with a directory goes on from its last checkpoint"
        ) from error


def _reason(error: Exception) -> str:
    """Return the first sentence of an error, without the place in torch's sources."""
    return re.sub(r"^\[[^]]*\.cc:\d+\] ", "", str(error)).split("\n")[0].split(". ")[0]


# Models and process groups


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside ``torch.compile`` and ``DistributedDataParallel``; refuse one that is sharded."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            break
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "placements") or type(parameter).__name__ == "FlatParameter":
            raise CuberError(
                f"parameter '{name}' is sharded over processes, by fully_shard or FSDP, and its rows and columns are "
                "not here to protect: train with DistributedDataParallel instead"
            )
    return model


def rank_from_environment() -> int | None:
    """Return the number of this process among those that ``torchrun`` has started; None: it has not."""
    return int(os.environ["RANK"]) if all(name in os.environ for name in ENVIRONMENT) else None


def local_rank() -> int:
    """Return the number of this process among those that ``torchrun`` has started on this machine; else 0."""
    return int(os.environ.get("LOCAL_RANK", 0)) if rank_from_environment() is not None else 0


@contextmanager
def group_from_environment() -> Iterator[None]:
    """While open, the processes that ``torchrun`` has started are one group; in a single process nothing happens."""
    if rank_from_environment() is None or distributed.is_initialized():
        yield
        return
    text = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(text or DEFAULT_TIMEOUT)
        timeout = timedelta(seconds=seconds)
        if not seconds > 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise CuberError(f"{TIMEOUT} must be a number of seconds above 0, not '{text}'") from None
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        distributed.init_process_group(backend, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise ProcessGroupError(
            f"the processes that torchrun started do not find each other ({_reason(error)}): start them again"
        ) from error
    try:
        yield
    finally:
        distributed.destroy_process_group()
