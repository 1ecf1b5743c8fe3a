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


class Lock:
    """The lock of a directory, free again when its process ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / LOCK
        self._lock = FileLock(self._path)

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock.is_locked

    def acquire(self) -> None:
        """Take the lock; raise a RefusedError if another process has it."""
        try:
            with open(self._path, "ab") as file:
                self._lock.acquire(timeout=TIMEOUT, poll_interval=TIMEOUT / 10)
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):
                    # The last holder has removed this file, and another process may hold the new one.
                    self._lock.release()
                    raise Timeout(str(self._path))
        except Timeout:
            raise RefusedError(f"another process is using {self._directory}: wait for it, or choose another") from None

    def release(self, *, remove: bool = False) -> None:
        """Release the lock; its file can be removed only while it is held."""
        if remove:
            self._path.unlink(missing_ok=True)
        self._lock.release()


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
