"""Random numbers that depend on the seed alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from cuber.errors import CuberError


def check_seed(seed: object) -> None:
    """Raise a CuberError unless every random generator accepts this seed."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise CuberError(f"seed must be a whole number from 0 to 2**63 - 1, not {seed!r}")


def derive(seed: int, *purpose: object) -> int:
    """Derive an independent seed for a purpose.

    >>> derive(0, "order", 1) == derive(0, "order", 1) != derive(0, "order", 2)
    True
    """
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python, and restore their states on exit."""
    before = random_state(device)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        set_random_state(before, device)


def random_state(device: torch.device | None) -> dict[str, Any]:
    """Return the states of the generators of torch, also on its device, of numpy and of Python."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device is not None and device.type == "cuda" else None,
        "mps": torch.mps.get_rng_state() if device is not None and device.type == "mps" else None,
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }


def set_random_state(state: dict[str, Any], device: torch.device | None) -> None:
    """Restore what ``random_state`` returned; a generator of another device stays as it is."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    if state.get("mps") is not None and device is not None and device.type == "mps":
        torch.mps.set_rng_state(state["mps"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
