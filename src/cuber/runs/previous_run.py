"""The run that was in a directory before: kept aside until the new one has got somewhere."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

REPLACED = "replaced"


class Replaced:
    """What ``--fresh`` puts aside, those files of a directory that have one of the ``names``."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self._directory = directory
        self._names = names
        self._kept = directory / REPLACED
        self._moving = directory / f".{REPLACED}"
        """There only while files move: whoever finds it knows that a process was killed meanwhile."""

    def put_aside(self) -> None:
        """Make room for a new run."""
        self._moving.mkdir()
        for name in self._names:
            if (self._directory / name).exists():
                (self._directory / name).rename(self._moving / name)
        self._moving.rename(self._kept)

    def settle(self, *, got_somewhere: bool) -> None:
        """Where the new run has got somewhere, forget the old one; else it comes back, if there is one."""
        if self._kept.exists() and got_somewhere:
            shutil.rmtree(self._kept, ignore_errors=True)
        elif self._kept.exists():
            remove(self._directory, self._names)
            self._kept.rename(self._moving)
        if self._moving.exists():
            for path in self._moving.iterdir():
                path.rename(self._directory / path.name)
            self._moving.rmdir()


def remove(directory: Path, names: Sequence[str]) -> None:
    """Remove files and folders, in this order."""
    for name in names:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
