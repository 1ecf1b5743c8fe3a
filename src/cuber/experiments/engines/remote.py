"""What Dask and Ray have in common as places to run experiments."""

from __future__ import annotations

import importlib
import socket
import threading
import uuid
from abc import ABC, abstractmethod
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cuber.errors import CuberError, first_line, needs_extra
from cuber.experiments.engines import isolated
from cuber.experiments.experiment import Experiment
from cuber.experiments.processes import RunFailedError

CONNECT_SECONDS = 10.0
STOP_SECONDS = 30.0
"""How long runs may take to save and stop, before they are cancelled."""
ENGINES = {"dask": "DaskEngine", "ray": "RayEngine"}


class RemoteEngine(Executor, ABC):
    """Run calls on other machines, each in a process of its own; their directories must be shared by all machines.

    A call whose worker dies is called again on another; an engine that loses several workers by it gives up.

    Args:
        address: ``HOST:PORT`` of the engine; empty: a local one.
        out: A shared directory.
    """

    name = ""

    def __init__(self, address: str, out: Path) -> None:
        self.address = address
        self.stopped = False
        self._futures: set[Future[Any]] = set()
        self._timer: threading.Timer | None = None
        self._stop_file = out.absolute() / f".stop-{uuid.uuid4().hex[:8]}"
        with needs_extra(self.name, f"--on {self.name}"):
            self.connect()

    @abstractmethod
    def connect(self) -> None:
        """Import the engine's package and connect to the engine."""

    @abstractmethod
    def start(self, function: Any, args: Any, threads: int) -> Future[Any]:
        """Call a function that needs a number of threads; again on another worker, a few times, if its worker dies."""

    @abstractmethod
    def cancel(self) -> None:
        """Give up all calls."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function on some worker as soon as the engine has room for it."""
        future: Future[Any] = Future()
        if self.stopped:
            future.set_exception(CancelledError())
            return future
        threads = next((one.threads for one in args if isinstance(one, Experiment)), None)
        try:
            call = self.start(isolated.call_isolated, (function, args, kwargs, self._stop_file), threads or 1)
        except Exception as error:  # of any kind: the engine is gone
            future.set_exception(RunFailedError(f"{self.name} does not take it: {first_line(error)}"))
            return future
        self._futures.add(future)
        call.add_done_callback(lambda done: self._pass_on(done, future))
        return future

    def stop(self, number: int = 0) -> None:
        """Tell all runs to save and stop, and start no more."""
        if not self.stopped:
            self.stopped = True
            self._stop_file.parent.mkdir(parents=True, exist_ok=True)
            self._stop_file.touch()
            self._timer = threading.Timer(STOP_SECONDS, self.cancel)
            self._timer.daemon = True
            self._timer.start()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnect, after all calls have ended; call ``stop`` first to end them soon."""
        if wait:
            wait_for(self._futures, timeout=2 * STOP_SECONDS if self.stopped else None)
        if self._timer is not None:
            self._timer.cancel()
        self._stop_file.unlink(missing_ok=True)

    def _pass_on(self, done: Future[Any], future: Future[Any]) -> None:
        """Pass the outcome of a remote call on to the future that the grid waits for."""
        error: BaseException | None = None
        try:
            state, message = done.result()
            if state == isolated.STOPPED:
                error = KeyboardInterrupt(message)
            elif state != isolated.FINISHED:
                error = isolated.ERRORS[state](message)
        except (Exception, CancelledError) as lost:
            lost_by = f"{self.name} has lost it: {first_line(lost)}"
            error = KeyboardInterrupt() if self.stopped else RunFailedError(lost_by)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def check_reachable(address: str, where: str) -> None:
    """Raise a CuberError unless something listens at ``HOST:PORT``: engines try for minutes, and print at length."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
        if not host or not port:
            raise ValueError("it names no host or no port")
    except ValueError as error:
        raise CuberError(
            f"--on {where} is not an address such as {where.partition('://')[0]}://HOST:PORT ({error})"
        ) from error
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise CuberError(f"--on {where}: nothing answers at {address} ({error.strerror or error})") from error


def open_engine(where: str, out: Path) -> RemoteEngine:
    """Connect to the engine that ``--on`` names: ``dask://HOST:PORT``, ``ray://HOST:PORT`` or ``ray``.

    Raises:
        CuberError: There is no such engine, its package is missing, or it cannot be reached.
    """
    name, separator, address = where.partition("://")
    if name not in ENGINES or (not separator and name != "ray"):
        raise CuberError(f"--on takes dask://HOST:PORT, ray://HOST:PORT, ray or slurm, not '{where}'")
    if separator:
        check_reachable(address, where)
    module = importlib.import_module(f"cuber.experiments.engines.{name}_engine")
    engine: RemoteEngine = getattr(module, ENGINES[name])(address, out)
    return engine
