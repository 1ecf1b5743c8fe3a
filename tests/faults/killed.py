"""Runs that are killed at a moment of our choice: the n-th time that a module is called or a file is touched.

Counting moments instead of seconds makes a random one come again, and reaches every part of a run: steps, evaluations,
the extraction of bases, the middle of writing a checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import sklearn.datasets
import torch
import torch._dynamo
from torch.nn.modules.module import register_module_forward_hook

import cuber.runs.directory
import cuber.training.trainer
from cuber.experiments import Experiment, run

PRELOADED = (torch._dynamo, sklearn.datasets)
"""Imported here, once for all processes: torch's optimizers import _dynamo at their first step, digits sklearn."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.faults.killed"])


def _run(experiment: Experiment, directory: Path, last: int | None, moments: Any) -> None:
    # A checkpoint whenever one may be written, in the middle of an epoch too.
    cuber.runs.directory.SECONDS_BETWEEN = 0.0
    cuber.training.trainer.REPORT_STEPS = 2
    count = 0

    def pass_by(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    register_module_forward_hook(pass_by)
    os.fsync = pass_by  # what a process has written outlives it, if not the machine
    for name in ("replace", "unlink"):
        setattr(os, name, _after(pass_by, getattr(os, name)))
    run(experiment, directory)
    moments.value = count


def _after(first: Any, function: Any) -> Any:
    def both(*arguments: Any, **options: Any) -> Any:
        first()
        return function(*arguments, **options)

    return both


def attempt(experiment: Experiment, directory: Path, last: int | None = None) -> int | None:
    """Run in a process of its own, killed at its ``last`` moment; how many it had, None where it was killed."""
    moments = CONTEXT.Value("l", 0)
    process = CONTEXT.Process(target=_run, args=(experiment, directory, last, moments))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return moments.value if process.exitcode == 0 else None
