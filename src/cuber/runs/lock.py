"""Who is at work in a directory: one process at a time, for as long as it lives."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock, Timeout

from cuber.errors import CuberError

LOCK = ".lock"
PATIENCE = 0.3
"""Seconds until a directory counts as taken: whoever only asks holds it for an instant."""


class RefusedError(CuberError):
    """A run may not have its directory, which is in use or holds something else; nothing was written."""


class Lock:
    """Holds a directory against others."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / LOCK
        self._lock = FileLock(self._path)

    @property
    def held(self) -> bool:
        """By us."""
        return self._lock.is_locked

    def acquire(self) -> None:
        """Take it; a sentence where another process has it."""
        try:
            with open(self._path, "ab") as file:
                self._lock.acquire(timeout=PATIENCE, poll_interval=PATIENCE / 10)
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):
                    # What we hold is a file that its last holder removed, and somebody else may hold the new one.
                    self._lock.release()
                    raise Timeout(str(self._path))
        except Timeout:
            raise RefusedError(
                f"another process is at work in {self._directory}: wait for it, or choose another"
            ) from None

    def release(self, *, remove: bool = False) -> None:
        """Give it back; its file may go only while it is ours."""
        if remove:
            self._path.unlink(missing_ok=True)
        self._lock.release()


def is_held(directory: Path) -> bool | None:
    """Whether a process is at work there; None where nobody may ask."""
    if not (directory / LOCK).exists():
        return False
    try:
        with FileLock(directory / LOCK).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return None
