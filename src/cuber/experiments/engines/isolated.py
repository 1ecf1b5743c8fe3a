"""Call a function in a process of its own on the worker of an engine.

A run needs its own process there too: it seeds global random numbers, sets the number of threads, obeys signals, and
may be killed for its memory. The process saves and stops when its worker dies.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from pathlib import Path
from typing import Any

from cuber.experiments.processes import LocalProcesses, RunFailedError
from cuber.runs.lock import InUseError, RefusedError

POLL_SECONDS = 1.0
FINISHED, STOPPED = "finished", "stopped"
ERRORS = {kind.__name__: kind for kind in (InUseError, RefusedError, RunFailedError)}


def call_isolated(function: Callable[..., None], args: Any, kwargs: Any, stop_file: Path) -> tuple[str, str]:
    """Call a function in a new process, and tell it to save and stop as soon as a file exists.

    Returns:
        Finished, stopped or the name of an error in ``ERRORS``, and its message: engines would wrap an exception.
    """
    # Dask marks its workers as daemons, which may have no children, as these would outlive them; ours do not.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    executor = LocalProcesses(1)
    if stop_file.exists():
        executor.stop()
    future = executor.submit(function, *args, **kwargs)
    try:
        while not wait([future], POLL_SECONDS).done:
            if stop_file.exists():
                executor.stop()
        future.result()
    except (KeyboardInterrupt, CancelledError):  # of the run, or of this thread by the engine
        executor.stop()
        return STOPPED, ""
    except tuple(ERRORS.values()) as error:
        return type(error).__name__, str(error)
    finally:
        executor.shutdown()
    return FINISHED, ""
