"""A lock that lets one process at a time work in a directory, on one machine or on several that share it.

Two files, because neither suffices. ``.lock`` is locked by the operating system: it is free as soon as its process
ends, but on some shared file systems other machines do not see that it is held. ``.lease`` names the holder, which
renews it; other machines take it over when it was not renewed for a while. They measure that by their own clocks only.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from filelock import FileLock, SoftFileLease, Timeout

from cuber.errors import CuberError

LOCK, LEASE = ".lock", ".lease"
TIMEOUT = 0.3
"""Seconds; ``is_held`` takes the lock for an instant."""
LEASE_SECONDS, RENEWAL_SECONDS = 60.0, 10.0
"""After how long a lease that was not renewed is taken over, and how often it is renewed."""


class RefusedError(CuberError):
    """A directory is in use or holds something else; nothing was written."""


class InUseError(RefusedError):
    """Another process works in the directory."""


class Lock:
    """The lock of a directory, held until it is released or the process ends."""

    def __init__(self, file_lock: FileLock, lease: SoftFileLease) -> None:
        self._file_lock = file_lock
        self._lease = lease

    @property
    def is_lost(self) -> bool:
        """Whether another machine has taken over, as after a pause or a partition of the network."""
        owner = self._lease.owner  # the lease itself notices a change only when it is renewed
        return self._lease.compromise is not None or (owner is not None and owner.token != self._lease.token)

    def release(self) -> None:
        """Let other processes work in the directory."""
        self._lease.release()
        self._file_lock.release()


def acquire(directory: Path) -> Lock:
    """Return the lock of a directory; refuse one that is in use, wait for the lease of a machine that seems dead.

    Raises:
        InUseError: Another process holds the lock.
        RefusedError: A folder, a pipe or a link has the name of the lock.
    """
    for name in (LOCK, LEASE):
        if os.path.lexists(directory / name) and not stat.S_ISREG(os.lstat(directory / name).st_mode):
            raise RefusedError(f"{directory / name} locks a run directory, but is not a file: remove it")
    path = directory / LOCK
    lock = FileLock(path)
    try:
        with open(path, "ab") as file:
            lock.acquire(timeout=TIMEOUT, poll_interval=TIMEOUT / 10)
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                # The last holder has removed this file, and another process may hold the new one.
                lock.release()
                raise Timeout(str(path))
        lease = _lease(directory)
        try:
            if _is_of_this_machine(lease):  # left by a dead process, or copied with the directory of a live one
                (directory / LEASE).unlink(missing_ok=True)
            before = heartbeat(directory)
            longest = LEASE_SECONDS + RENEWAL_SECONDS
            try:
                lease.acquire(timeout=longest, cancel_check=lambda: heartbeat(directory) not in (before, None))
            except Timeout:
                if before is None or heartbeat(directory) != before or (directory / LEASE).stat().st_size:
                    raise
                # Left by a machine that stopped before it wrote its name; filelock would wait for it without end.
                (directory / LEASE).unlink(missing_ok=True)
                lease.acquire(timeout=TIMEOUT)
        except BaseException:
            lock.release()
            raise
    except Timeout:
        raise InUseError(f"another process is using {directory}: wait for it, or choose another") from None
    return Lock(lock, lease)


def is_held(directory: Path) -> bool | None:
    """Return whether a process holds the lock of a directory; None if only its heartbeat can tell, or nothing."""
    if not (directory / LOCK).exists():
        return False
    try:
        with FileLock(directory / LOCK).acquire(timeout=0):
            lease = _lease(directory)
            return False if lease.owner is None or _is_of_this_machine(lease) else None
    except Timeout:
        return True
    except OSError:
        return None


def heartbeat(directory: Path) -> tuple[int, int] | None:
    """Return a value that changes whenever the holder of a directory renews its lease; None if there is none."""
    try:
        found = os.stat(directory / LEASE)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _is_of_this_machine(lease: SoftFileLease) -> bool:
    """Return whether a process of this machine wrote the lease: if it still had it, it would hold the lock too."""
    # The name of a machine may be followed by that of a process namespace.
    return lease.owner is not None and lease.owner.hostname.split("?")[0] == socket.gethostname()


def _lease(directory: Path) -> SoftFileLease:
    # Shared by threads: the run's own thread asks whether the lease is lost, another renews it.
    path, interval = directory / LEASE, RENEWAL_SECONDS
    return SoftFileLease(path, lease_duration=LEASE_SECONDS, heartbeat_interval=interval, thread_local=False)
