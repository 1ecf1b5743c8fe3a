"""Plain values and atomic writes."""

from __future__ import annotations

import contextlib
import math
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file such that it is there completely or not at all; pipes and devices are written to directly."""
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()
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
