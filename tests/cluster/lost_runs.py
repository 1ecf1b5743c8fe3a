"""Grids in which one run loses its machine in the middle: it is frozen, its machine killed, then the run itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from cuber.experiments.campaign import ELSEWHERE, JobStatus, run_grid
from cuber.experiments.grid import Cell, grid
from cuber.runs.checkpoint import Checkpoints
from cuber.runs.lock import LEASE
from cuber.runs.result import FILE_NAME
from tests.experiments.test_grid import InThisProcess
from tests.faults.test_killed import assert_same

SECONDS = 300.0
"""Generous: a machine that is too slow for it is broken."""


def six_runs(out: Path) -> list[Cell]:
    """One that takes seconds, so that it can be caught in the middle, and five short ones."""
    small = {"tasks": 3, "train_per_task": 20, "threads": 1}
    return [
        *grid(out, ["split-digits"], ["gpm"], [0], epochs=120, **small),
        *grid(out, ["split-digits"], ["finetune"], range(5), epochs=1, **small),
    ]


def freeze_in_the_middle(directory: Path) -> psutil.Process | None:
    """Stop the process of a run that has a checkpoint and no result; None if there is none yet."""
    if not Checkpoints(directory / "checkpoint").any():
        return None
    holder = dict(line.split("=", 1) for line in (directory / LEASE).read_text().splitlines()[1:])
    process = psutil.Process(int(holder["pid"]))
    process.send_signal(signal.SIGSTOP)
    assert not (directory / FILE_NAME).exists(), "too fast to be caught"
    return process


class LoseMachine:
    """A ``watch`` of ``run_grid`` that kills the machine of the first run; a while later its process ends too."""

    def __init__(self, kill: Callable[[set[int]], None]) -> None:
        self.kill = kill
        self.frozen: psutil.Process | None = None
        self.states: list[str] = []
        self._deadline = time.monotonic() + SECONDS

    def __call__(self, jobs: Sequence[JobStatus]) -> None:
        assert time.monotonic() < self._deadline, [(job.name, job.state, job.message) for job in jobs]
        first = jobs[0]
        if self.states[-1:] != [first.state]:
            self.states.append(first.state)
        if self.frozen is None:
            self.frozen = freeze_in_the_middle(first.cell.directory)
            if self.frozen is not None:
                self.kill({parent.pid for parent in self.frozen.parents()})
        elif first.state == ELSEWHERE:  # the dead machine still seems to have it
            self.end()

    def end(self) -> None:
        if self.frozen is not None and self.frozen.is_running():
            self.frozen.send_signal(signal.SIGKILL)


def assert_as_if_nothing_had_happened(cells: Sequence[Cell], undisturbed: Path) -> None:
    """The first run was resumed, and all ended with the bits of runs in this process."""
    local = six_runs(undisturbed)
    run_grid(local, InThisProcess())
    for cell, expected in zip(cells, local, strict=True):
        assert_same(cell.directory, expected.directory)
    assert '"resumed"' in (cells[0].directory / "log.jsonl").read_text()
    assert not any(name.startswith(".stop") for name in os.listdir(cells[0].directory.parents[2]))
