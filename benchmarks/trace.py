"""Count what a reader has to open: the files and lines of ours that one cycle of CUBER executes.

    python -m benchmarks.trace

A small network learns two tasks. The second one is traced from ``begin_task`` to ``end_task``, and its forward pass,
backward pass and optimizer step by themselves.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import cuber

SOURCE = Path(cuber.__file__).parent

Executed = dict[str, set[int]]
"""File -> line numbers."""


@contextmanager
def traced(executed: Executed) -> Iterator[None]:
    """While open, note every line of ours that is executed."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(str(SOURCE)):
            return None
        executed[str(Path(path).relative_to(SOURCE))].add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def cycle() -> tuple[Executed, Executed]:
    """Return what the second task executes: all of it, and one step alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3))
    learner = cuber.CUBER(model, eps1=0.0, eps2=-1.0, threshold=0.8)
    whole: Executed = defaultdict(set)
    step: Executed = defaultdict(set)
    for task in range(2):
        loader = [(torch.randn(6, 8), torch.randint(3, (6,))) for _ in range(4)]
        with traced(whole if task else defaultdict(set)):
            learner.begin_task(loader, functional.cross_entropy)
            optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        for x, y in loader:
            with traced(step if task else defaultdict(set)):
                optimizer.zero_grad()
                functional.cross_entropy(learner.model(x), y).backward()
                optimizer.step()
        with traced(whole if task else defaultdict(set)):
            learner.end_epoch()
            learner.end_task(loader)
    for file, lines in step.items():
        whole[file] |= lines
    return whole, step


def main() -> None:
    whole, step = cycle()
    for what, executed in (("one cycle", whole), ("forward, backward and step", step)):
        print(f"{what}: {len(executed)} files, {sum(map(len, executed.values()))} lines")
        for file, lines in sorted(executed.items(), key=lambda item: -len(item[1])):
            print(f"  {file:32}{len(lines):5}")


if __name__ == "__main__":
    main()
