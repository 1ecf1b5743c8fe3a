"""A thousand small tasks: processor time per task, bytes kept and size of the saved state after 10, 100 and 1,000."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.subjects import learn_task
from benchmarks.timing import Figure
from cuber import CUBER, GPM, TRGP
from cuber.methods.cuber import SubspaceMethod

INPUTS, CLASSES, SAMPLES, BATCH = 24, 4, 128, 32
METHODS: list[type[SubspaceMethod]] = [GPM, TRGP, CUBER]


def measure(quick: bool) -> Iterator[Figure]:
    for method in METHODS:
        yield from _measure(method, (10, 50) if quick else (10, 100, 1000))


def _measure(method: type[SubspaceMethod], counts: tuple[int, ...]) -> Iterator[Figure]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(INPUTS, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES, bias=False)
    )
    learner = method(model, samples=SAMPLES)
    taken, before = [], 0
    for count in range(1, counts[-1] + 1):
        loader = _task()
        began = time.process_time()
        learn_task(learner, loader)
        taken.append(time.process_time() - began)
        if count + 1 in counts:
            before = sum(learner.memory_bytes().values())
        if count in counts:
            kept = sum(learner.memory_bytes().values())
            name, last = f"{method.__name__} after {count} tasks", taken[-max(5, count // 10) :]
            yield Figure(f"{name}: CPU time of a task", 1000 * statistics.median(last), "ms")
            yield Figure(f"{name}: kept", kept / 1000, "kB")
            yield Figure(f"{name}: kept of the last task", (kept - before) / 1000, "kB")
            yield Figure(f"{name}: saved state", _size(learner) / 1000, "kB")
            yield Figure(f"{name}: regimes listed", float(_regimes(learner)), "")


def _task() -> list[tuple[Tensor, Tensor]]:
    """Inputs in a random subspace of eight directions, and the classes that a random layer gives them."""
    x = torch.randn(SAMPLES, 8) @ torch.randn(8, INPUTS)
    y = (x @ torch.randn(INPUTS, CLASSES)).argmax(1)
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def _size(learner: SubspaceMethod) -> int:
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    return file.tell()


def _regimes(learner: SubspaceMethod) -> int:
    return sum(len(regimes) for memory in learner.memory.values() for regimes in memory.regimes)
