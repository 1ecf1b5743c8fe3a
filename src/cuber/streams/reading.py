"""Read batches in worker processes, and into pinned memory, with the same random numbers as without."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from cuber.core.randomness import derive, seeded
from cuber.errors import CuberError, first_line


class Reading(NamedTuple):
    """How data from disk, or of a torch Dataset, is read."""

    workers: int = 0
    """Processes; 0: this one."""
    pinned: bool = False
    """Whether batches are put where a GPU copies them from while the program goes on."""


IN_THIS_PROCESS = Reading()
_present = ContextVar("reading", default=IN_THIS_PROCESS)


@contextmanager
def reading(workers: int, *, pinned: bool) -> Iterator[None]:
    """While open, splits are read in this way."""
    before = _present.set(Reading(workers, pinned))
    try:
        yield
    finally:
        _present.reset(before)


def present_reading() -> Reading:
    """Return how splits are read at present."""
    return _present.get()


Read = Callable[[list[int]], Any]


class _Batches(Dataset[Any]):
    """A Dataset of whole batches; an item is named by the indices of its samples and a seed."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def __getitem__(self, item: tuple[list[int], int]) -> Any:
        indices, seed = item
        try:
            with seeded(seed):  # whatever process reads it, and whichever batches it has read before
                return self._read(indices)
        except CuberError as error:
            if get_worker_info() is None:
                raise
            return error  # a DataLoader would add the traceback of its worker to the sentence


def read_batches(read: Read, chunks: Sequence[Tensor], seed: int) -> Iterator[Any]:
    """Yield ``read(indices)`` for each chunk of indices, each with random numbers of its own.

    Global random numbers of torch, numpy and Python that ``read`` draws depend on the seed and the indices alone. So
    they are the same with any number of workers and in a resumed run, and nothing else draws other ones.
    """
    workers, pinned = present_reading()
    items = [(indices, derive(seed, indices)) for indices in (chunk.tolist() for chunk in chunks)]
    loader = DataLoader(
        _Batches(read),
        sampler=items,
        batch_size=None,
        num_workers=workers,
        pin_memory=pinned,
        # Forked workers share the images of this process; other ways of starting them would copy them all.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        generator=torch.Generator(),  # else it draws from the global one
    )
    batches = iter(loader)
    while True:
        try:
            batch = next(batches, None)
        except RuntimeError as error:
            if "DataLoader worker (pid" not in str(error):  # errors of the Dataset say "in DataLoader worker process"
                raise
            raise CuberError(f"a process that reads data has died: {first_line(error)}") from error
        if isinstance(batch, CuberError):
            raise batch
        if batch is None:
            return
        yield batch
