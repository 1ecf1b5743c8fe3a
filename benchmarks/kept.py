"""Memory: what CUBER keeps after ten tasks beside the dense form, and what a step needs beside plain SGD."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.subjects import ALEXNET_SUBJECT, METHODS, alexnet
from benchmarks.timing import Figure, in_a_process
from cuber import CUBER

TASKS = 10
KEPT = ("bases", "scalings", "gradients", "energies")


def measure(quick: bool) -> list[Figure]:
    figures = []
    if not quick:
        figures.append(Figure(f"kept by CUBER after {TASKS} tasks, beside the dense form", _kept(), at_most=1 / 6))
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):  # only glibc tells
        return figures
    plain = in_a_process(_peak, None)
    for method in ["CUBER"] if quick else METHODS:
        figures.append(
            Figure(f"peak memory of a step, AlexNet-5, {method}", in_a_process(_peak, method) / plain, at_most=1.4)
        )
    return figures


def _kept() -> float:
    """Tasks of smooth random images, a few steps each: what is kept depends on what layers see, not on accuracy."""
    torch.manual_seed(0)
    learner = CUBER(alexnet(), samples=125, penalty="norm", threshold=0.97, threshold_step=0.003)
    dense = 0
    for task in range(TASKS):
        loader = [(_images(125), torch.randint(10, (125,)))]
        learner.begin_task(loader, functional.cross_entropy)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.01))
        for x, y in loader * 3:
            optimizer.zero_grad()
            functional.cross_entropy(learner.model(x), y).backward()
            optimizer.step()
        learner.end_epoch()
        learner.end_task(loader)
        for pool in learner.memory.values():
            dense += 8 * pool.dimension * int(pool.owners[task].sum()) + 2 * 4 * pool.dimension**2 * (task > 0)
    sizes = learner.memory_bytes()
    return sum(sizes.get(kind, 0) for kind in KEPT) / dense


def _images(count: int) -> torch.Tensor:
    coarse = torch.randn(count, 3, 8, 8)
    return functional.interpolate(coarse, 32, mode="bilinear") + 0.1 * torch.randn(count, 3, 32, 32)


def _peak(method: str | None) -> int:
    """The bytes in use at most during a few steps, beyond what there were before."""
    torch.set_num_threads(1)
    before = _in_use()
    work = ALEXNET_SUBJECT.bare() if method is None else ALEXNET_SUBJECT.ours(method)
    work()
    with _Watch() as watch:
        work()
    return watch.most - before


class _Watch(TorchDispatchMode):
    """Looks at the memory after every operation, forward and backward."""

    most = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        self.most = max(self.most, _in_use())
        return result


class _Mallinfo(ctypes.Structure):
    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def _in_use() -> int:
    """Bytes that are allocated and not freed, as glibc counts them."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Mallinfo
    told = ask()
    return int(told.uordblks + told.hblkhd)
