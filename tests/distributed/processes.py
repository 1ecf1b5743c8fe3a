"""Functions that run in several processes at once, which exchange tensors by gloo."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import sklearn.datasets
import torch
import torch._dynamo
from torch import distributed

PRELOADED = (torch._dynamo, sklearn.datasets)
"""Imported here, once for all processes: torch's optimizers import _dynamo at their first step, digits sklearn."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.distributed.loops", "tests.distributed.processes", "cuber.experiments"])
PATIENCE = 120.0
"""Seconds until a process that waits for another gives up: only where a test fails."""


def _work(rank: int, count: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = distributed.FileStore(str(folder / "store"), count)
    timeout = timedelta(seconds=PATIENCE)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timeout)
    try:
        outcome = function(*arguments)
    except BaseException:
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        raise
    torch.save(outcome, folder / f"{rank}.pt")
    distributed.destroy_process_group()


def in_processes(folder: Path, function: Callable[..., Any], *arguments: Any, count: int = 2) -> list[Any]:
    """Call a function in several processes; return what each returned, by rank, and None for one that was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    workers = [CONTEXT.Process(target=_work, args=(rank, count, folder, function, arguments)) for rank in range(count)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
                worker.join()
    errors = [path.read_text() for path in sorted(folder.glob("*.error"))]
    assert not errors, "\n".join(errors)
    files = [folder / f"{rank}.pt" for rank in range(count)]
    return [torch.load(file, weights_only=False) if file.exists() else None for file in files]
