"""The run that ``--fresh`` replaces, kept until the new one has a checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

REPLACED = "replaced"


class PreviousRun:
    """Moves files of a directory, those with one of the ``names``, to its folder ``replaced`` and back."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self._directory = directory
        self._names = names
        self._kept = directory / REPLACED
        self._moving = directory / f".{REPLACED}"
        """Exists only while files are moved: if it is found, a process was killed meanwhile."""

    def set_aside(self) -> None:
        """Move the files to the folder."""
        self._moving.mkdir()
        for name in self._names:
            if (self._directory / name).exists():
                (self._directory / name).rename(self._moving / name)
        self._moving.rename(self._kept)

    def settle(self, *, keep_new: bool) -> None:
        """Delete the previous run, or restore it in place of the new one; do nothing if there is none."""
        if self._kept.exists() and keep_new:
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
