"""Running experiments in processes of their own; another executor may take the place of this one."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from concurrent.futures import Executor, Future
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from cuber.core.allocation import keep_freed_memory
from cuber.errors import CuberError
from cuber.experiments.config import Experiment
from cuber.loggers import Logger
from cuber.runs.directory import OUTPUT, RunDirectory
from cuber.runs.lock import RefusedError

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class RunFailedError(CuberError):
    """A run has come to no result; any executor can carry this home."""


def work(experiment: Experiment, directory: str | os.PathLike[str], *, fresh: bool = False) -> None:
    """Run one experiment in its directory: all that an executor has to call, wherever it does so."""
    from cuber.experiments.run import run

    with Output(Path(directory) / OUTPUT) as output:
        held = RunDirectory(directory, fresh=fresh, keep_failures=True, loggers=[output])
        try:
            run(experiment, held)
        except RefusedError:
            raise
        except CuberError as error:
            raise RunFailedError(str(error)) from error
        except Exception as error:
            traceback.print_exc()
            raise RunFailedError(f"{type(error).__name__}: {error}") from error


class Output(Logger):
    """Has what is printed as an error, as a context manager, in a file; until the directory is ours, it waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = io.StringIO()
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Output:
        self._closing.enter_context(contextlib.redirect_stderr(self._text))
        return self

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        file = self._closing.enter_context(self._path.open("a", encoding="utf-8", buffering=1))
        file.write(self._text.getvalue())
        self._text = io.StringIO()
        self._closing.enter_context(contextlib.redirect_stderr(file))

    def __exit__(self, *_: object) -> None:
        self._closing.close()
        sys.stderr.write(self._text.getvalue())  # it never was


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
            heard, said = self._context.Pipe(duplex=False)
            process = self._context.Process(target=_call, args=(said, function, args, kwargs))
            process.start()
            said.close()
            self._processes.add(process)
            if self._stopped:  # asked to while it was starting
                process.terminate()
            why = _last_word(heard)
            process.join()
            self._processes.discard(process)
        if process.exitcode == 0:
            future.set_result(None)
        elif self._stopped:
            future.set_exception(KeyboardInterrupt())
        else:
            future.set_exception(why or RunFailedError(_how_it_ended(process.exitcode)))


def _call(said: Connection, function: Any, args: Any, kwargs: Any) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # a terminal's Ctrl-C is for whoever started us, who passes it on: twice would be in a hurry
    threading.Thread(target=_stop_as_an_orphan, daemon=True).start()
    keep_freed_memory()
    try:
        function(*args, **kwargs)
    except KeyboardInterrupt:
        sys.exit(1)
    except (RunFailedError, RefusedError) as error:
        said.send(error)
        sys.exit(1)


def _stop_as_an_orphan() -> None:
    """When whoever started us is gone, however it ended, stop where somebody can go on later."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _last_word(heard: Connection) -> CuberError | None:
    """Wait until a process says why it came to no result; None where it ends without a word."""
    with heard, contextlib.suppress(EOFError, OSError):
        return heard.recv()
    return None


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was killed ({signal.Signals(-code).name})"
    return "its process failed"
