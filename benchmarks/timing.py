"""Measuring: ratios in one run, in turns, as medians; and what machine it was."""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Figure:
    """Something measured, beside what is wanted of it."""

    name: str
    value: float
    unit: str = "x"
    at_most: float | None = None
    at_least: float | None = None

    @property
    def reached(self) -> bool | None:
        """Whether it is what is wanted; None where nothing is."""
        if self.at_most is None and self.at_least is None:
            return None
        low, high = self.at_least, self.at_most
        return (low is None or self.value >= low) and (high is None or self.value <= high)

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


def seconds(work: Work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ratios(works: Mapping[str, Work], base: str, turns: int) -> dict[str, float]:
    """How long each takes beside ``base``: the median over turns of the ratio within a turn, after one to warm up.

    Each turn begins with another one, so that nobody always comes after the one that leaves the cache in disorder.
    """
    for work in works.values():
        work()
    names = list(works)
    taken = [
        {name: seconds(works[name]) for name in names[turn % len(names) :] + names[: turn % len(names)]}
        for turn in range(turns)
    ]
    return {name: statistics.median(turn[name] / turn[base] for turn in taken) for name in works}


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of a module returns in a new process, whose memory is not that of this one."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, work, arguments))
    process.start()
    sender.close()  # so that receiving ends if the process dies
    returned = receiver.recv()
    process.join()
    return returned


def _send(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    sender.send(work(*arguments))


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor()
