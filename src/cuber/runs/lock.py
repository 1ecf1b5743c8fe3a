"""A lock that lets one process at a time work in a directory."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock, Timeout

from cuber.errors import CuberError

LOCK = ".lock"
TIMEOUT = 0.3
"""Seconds; ``is_held`` takes the lock for an instant."""


class RefusedError(CuberError):
    """A directory is in use or holds something else; nothing was written."""


def acquire(directory: Path) -> FileLock:
    """Return the lock of a directory, held until it is released or the process ends; refuse one that is in use."""
    path = directory / LOCK
    lock = FileLock(path)
    try:
        with open(path, "ab") as file:
            lock.acquire(timeout=TIMEOUT, poll_interval=TIMEOUT / 10)
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                # The last holder has removed this file, and another process may hold the new one.
                lock.release()
                raise Timeout(str(path))
    except Timeout:
        raise RefusedError(f"another process is using {directory}: wait for it, or choose another") from None
    return lock


def is_held(directory: Path) -> bool | None:
    """Return whether a process holds the lock of a directory; None if that cannot be tested."""
    if not (directory / LOCK).exists():
        return False
    try:
        with FileLock(directory / LOCK).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return None
