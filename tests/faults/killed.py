"""Runs that are killed at a moment of our choice: the n-th call of a function of ours, wherever that is.

Counting calls instead of seconds makes a random moment one that comes again, and reaches every part of a run: steps,
evaluations, the extraction of bases, the middle of writing a checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import cuber.training.directory
import cuber.training.run
from cuber.experiments import Experiment, run

SOURCE = str(Path(cuber.__file__).parent)
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.faults.killed"])


def _run(experiment: Experiment, directory: Path, last_call: int | None, calls: Any) -> None:
    # A checkpoint whenever one may be written, in the middle of an epoch too.
    cuber.training.directory.SECONDS_BETWEEN = 0.0
    cuber.training.run.STEPS_PER_LOOK = 2
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            count += 1
            if count == last_call:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(counted)
    run(experiment, directory)
    sys.setprofile(None)
    calls.value = count


def attempt(experiment: Experiment, directory: Path, last_call: int | None = None) -> int | None:
    """Run in a process of its own, killed at its ``last_call``; how many calls it took, None where it was killed."""
    calls = CONTEXT.Value("l", 0)
    process = CONTEXT.Process(target=_run, args=(experiment, directory, last_call, calls))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return calls.value if process.exitcode == 0 else None
