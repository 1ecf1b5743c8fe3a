"""Two processes that exchange tensors by gloo."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.distributed.loops", "torch._dynamo"])
PATIENCE = 120.0
"""Seconds until a process that waits for the other gives up: only where a test fails."""


def _work(rank: int, count: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = distributed.FileStore(str(folder / "store"), count)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=PATIENCE)
    )
    try:
        outcome = function(*arguments)
    except BaseException:
        outcome = traceback.format_exc()
        (folder / f"{rank}.error").write_text(outcome)
        raise
    torch.save(outcome, folder / f"{rank}.pt")
    distributed.destroy_process_group()


def in_processes(folder: Path, function: Callable[..., Any], *arguments: Any, count: int = 2) -> list[Any]:
    """Call a function in several processes at once; return what each returned, by rank."""
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
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]
