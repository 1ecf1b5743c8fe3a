"""Random numbers that depend on the seed alone."""

from __future__ import annotations

from cuber.core.randomness import derive, random_state, seeded, set_random_state
from cuber.errors import CuberError

__all__ = ["check_seed", "derive", "random_state", "seeded", "set_random_state"]


def check_seed(seed: object) -> None:
    """Raise a CuberError unless every random generator accepts this seed."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise CuberError(f"seed must be a whole number from 0 to 2**63 - 1, not {seed!r}")
