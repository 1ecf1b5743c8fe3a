"""Running experiments in processes of their own; another executor may take the place of this one."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from concurrent.futures import Executor, Future
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from cuber.errors import CuberError
from cuber.experiments.config import Experiment
from cuber.files import write_atomically
from cuber.training.directory import ERROR, OUTPUT

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class RunFailedError(CuberError):
    """A run has come to no result; its directory says why."""


def work(experiment: Experiment, directory: str | os.PathLike[str]) -> None:
    """Run one experiment in its directory: all that an executor has to call, wherever it does so."""
    from cuber.experiments.run import run

    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    with open(path / OUTPUT, "a", encoding="utf-8") as output, contextlib.redirect_stderr(output):
        try:
            run(experiment, path)
        except Exception as error:
            traceback.print_exc()
            path.mkdir(parents=True, exist_ok=True)
            message = str(error) or type(error).__name__
            about = {"benchmark": experiment.benchmark, "method": experiment.method, "seed": experiment.seed}
            word = {"message": message, "traceback": traceback.format_exc(), "experiment": about}
            write_atomically(path / ERROR, json.dumps(word, indent=1))
            raise RunFailedError(message) from error


class LocalProcesses(Executor):
    """At most so many processes at a time, one for each call; one that is killed takes no other with it."""

    def __init__(self, jobs: int) -> None:
        self._free = threading.Semaphore(jobs)
        self._context: Any = multiprocessing.get_context(METHOD)
        if METHOD == "forkserver":
            self._context.set_forkserver_preload(["cuber.experiments.run"])
        self._processes: set[BaseProcess] = set()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in a process, as soon as there is room for one."""
        future: Future[Any] = Future()
        thread = threading.Thread(target=self._attend, args=(future, function, args, kwargs), daemon=True)
        self._threads.append(thread)
        thread.start()
        return future

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask all processes to stop where they can go on later, and begin no more."""
        self._stopped = True
        for process in list(self._processes):
            if process.pid is not None and process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for all of them."""
        if cancel_futures:
            self._stopped = True
        for thread in self._threads if wait else []:
            thread.join()

    def _attend(self, future: Future[Any], function: Any, args: Any, kwargs: Any) -> None:
        with self._free:
            if self._stopped:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
            process = self._context.Process(target=_call, args=(function, args, kwargs))
            process.start()
            self._processes.add(process)
            if self._stopped:  # asked to while it was starting
                process.terminate()
            process.join()
            self._processes.discard(process)
        if process.exitcode == 0:
            future.set_result(None)
        elif self._stopped:
            future.set_exception(KeyboardInterrupt())
        else:
            future.set_exception(RunFailedError(_how_it_ended(process.exitcode)))


def _call(function: Any, args: Any, kwargs: Any) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # a terminal's Ctrl-C is for whoever started us, who passes it on: twice would be in a hurry
    try:
        function(*args, **kwargs)
    except (RunFailedError, KeyboardInterrupt):
        sys.exit(1)  # said already where it belongs


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was killed ({signal.Signals(-code).name})"
    return "its process failed"
