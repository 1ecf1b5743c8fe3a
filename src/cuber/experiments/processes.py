"""Run experiments in separate processes; any other executor can replace this one."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from cuber.core.allocation import keep_freed_memory
from cuber.errors import CuberError
from cuber.experiments.experiment import Experiment, run
from cuber.loggers import Logger, make_logger, open_at_once
from cuber.runs.directory import OUTPUT, RunDirectory
from cuber.runs.lock import RefusedError

START_ERRORS = (OSError, EOFError, MemoryError)
"""EOFError: the server that forks processes died of one of the others."""
PRELOADED = ["cuber.experiments.experiment", "torch._dynamo", "sklearn.datasets"]
"""Imported once for all processes; torch imports _dynamo at the first step of an optimizer."""
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class RunFailedError(CuberError):
    """A run failed; any executor can pickle this error."""


def work(
    experiment: Experiment,
    directory: str | os.PathLike[str],
    *,
    fresh: bool = False,
    log: Sequence[str] = (),
    checkpoint_every: int | None = None,
    theory: bool = False,
) -> None:
    """Run one experiment in its directory: the function that executors call."""
    with Output(Path(directory) / OUTPUT) as output:
        loggers = [output, *(make_logger(name, Path(directory)) for name in log)]
        held = RunDirectory(
            directory, checkpoint_every=checkpoint_every, fresh=fresh, keep_failures=True, loggers=loggers
        )
        try:
            run(experiment, held, theory=theory)
        except RefusedError:
            raise
        except CuberError as error:
            raise RunFailedError(str(error)) from error
        except Exception as error:
            traceback.print_exc()
            raise RunFailedError(f"{type(error).__name__}: {error}") from error


class Output(Logger):
    """Context manager that redirects standard error to a file, once the run has locked its directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = io.StringIO()
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Output:
        self._closing.enter_context(contextlib.redirect_stderr(self._text))
        return self

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        file = self._closing.enter_context(open_at_once(self._path, "a"))
        file.write(self._text.getvalue())
        self._text = io.StringIO()
        self._closing.enter_context(contextlib.redirect_stderr(file))

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # of a full disk, which the run reports
            self._closing.close()
        sys.stderr.write(self._text.getvalue())  # empty if the directory was locked


class LocalProcesses(ThreadPoolExecutor):
    """Run each call in its own process, at most ``jobs`` at a time; a killed process does not affect the others."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)  # each thread waits for one process
        self._context: Any = multiprocessing.get_context(METHOD)
        if METHOD == "forkserver":
            self._context.set_forkserver_preload(PRELOADED)
        self._processes: set[BaseProcess] = set()
        self.stopped = False

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in a process as soon as fewer than ``jobs`` are running."""
        if METHOD == "forkserver":
            from multiprocessing import forkserver

            with ignored_interrupts():  # while it imports torch, Ctrl-C would print its traceback
                forkserver.ensure_running()
        try:
            return super().submit(self._run, function, args, kwargs)
        except RuntimeError as error:  # no more threads
            raise CuberError(f"cannot start {self._max_workers} runs at a time ({error}): lower --jobs") from error

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Signal all processes to save and stop, and start no more."""
        self.stopped = True
        for process in list(self._processes):
            if process.pid is not None and process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def _run(self, function: Any, args: Any, kwargs: Any) -> None:
        if self.stopped:
            raise CancelledError
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_call, args=(sender, function, args, kwargs))
        with sender:
            try:
                process.start()
            except START_ERRORS as why:
                receiver.close()
                raise RunFailedError(f"its process could not be started ({str(why) or type(why).__name__})") from why
        self._processes.add(process)
        if self.stopped:  # while the process was starting
            process.terminate()
        error: CuberError | None = None
        with receiver, contextlib.suppress(EOFError, OSError):  # EOFError: it ended without an error
            error = receiver.recv()
        process.join()
        self._processes.discard(process)
        if process.exitcode and self.stopped:
            raise KeyboardInterrupt
        if process.exitcode:
            raise error or RunFailedError(describe_exit(process.exitcode))


def describe_exit(code: int) -> str:
    """Return how a process ended that has reported nothing, by its exit code.

    >>> describe_exit(-9)
    'its process was killed (SIGKILL)'
    """
    return f"its process was killed ({signal.Signals(-code).name})" if code < 0 else "its process failed"


@contextlib.contextmanager
def ignored_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C; threads other than the main one cannot arrange that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _call(sender: Connection, function: Any, args: Any, kwargs: Any) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the parent, which passes it on; a second signal would end the run at once
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server that forked this process ignores it
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    keep_freed_memory()
    try:
        function(*args, **kwargs)
    except KeyboardInterrupt:
        sys.exit(1)
    except (RunFailedError, RefusedError) as error:
        sender.send(error)
        sys.exit(1)


def _stop_with_parent() -> None:
    """Save and stop when the parent process ends, even if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
