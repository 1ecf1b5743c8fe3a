"""Memory allocator settings of processes that train."""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameter numbers of glibc's ``mallopt``."""
MMAP_THRESHOLD = 32 * 2**20
"""Larger blocks return to the system as soon as they are freed; 32 MB is the maximum that glibc accepts."""
NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Configure glibc to reuse freed memory instead of returning it to the system after every step.

    Returned memory comes back as fresh pages, and the page faults cost a tenth of an AlexNet step. Call it only in
    processes that do nothing but train.

    Returns:
        Whether the setting was changed: False without glibc, or if the environment has malloc settings of its own.
    """
    own = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if own or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt and mallopt(M_TRIM_THRESHOLD, NEVER) and mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD))
