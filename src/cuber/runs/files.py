"""Plain values, and text files: reading, and writing atomically."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_TEXT = 2**28
"""Bytes of a text file that is read: a file of a run has far fewer."""


def read_bytes(path: Path, largest: int | None = None) -> bytes:
    """Return the content of a file; raise an OSError for what is no file: reading a pipe or a device may never end."""
    with open(path, "rb", opener=_without_waiting) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        if largest is not None and found.st_size > largest:
            raise OSError(errno.EFBIG, f"it has more than {largest:,} bytes", str(path))
        return file.read()


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a file; raise an OSError for what is no file, or too large."""
    return read_bytes(path, LARGEST_TEXT).decode("utf-8", errors)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file; raise a ValueError if it is none."""
    return tomllib.loads(read_text(path))


def _without_waiting(path: str, flags: int) -> int:
    """Open a pipe too, although no process writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file such that it is there completely or not at all; pipes and devices are written to directly."""
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path))  # which returns a link to itself, where resolve() raises a RuntimeError
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # the name must survive a power cut too, where the system supports it
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def plain(value: Any, missing: Any = None) -> Any:
    """Return nested values as those of JSON; ``missing`` replaces None, NaN and infinity.

    >>> plain({1: (0.5, None, math.nan), "path": Path("runs")})
    {'1': [0.5, None, None], 'path': 'runs'}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(part, missing) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, missing) for part in value]
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return missing
    return value if isinstance(value, bool | int | float | str) else str(value)
