"""How a process of ours holds on to its memory."""

from __future__ import annotations

import ctypes
import os
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""What glibc's ``mallopt`` calls them."""

LARGE = 32 * 2**20
"""Blocks from this size on (glibc allows for no more) are the system's again as soon as they are freed."""

ALL = 2**31 - 1


def keep_freed_memory() -> bool:
    """Use again what tensors leave behind, instead of giving it back to the system in every step.

    What is given back comes as fresh pages the next time, each of them a fault: a tenth of a step of AlexNet. For
    processes that do nothing but train. True if it was possible: with glibc, unless somebody has settings of their own.
    """
    own = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if own or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(TRIM_THRESHOLD, ALL) and mallopt(MMAP_THRESHOLD, LARGE))
