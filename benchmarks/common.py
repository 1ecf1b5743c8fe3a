"""Small things that several experiments share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def keyword(text: str) -> tuple[str, int]:
    """Read ``name=number``."""
    name, _, value = text.partition("=")
    return name, int(value)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; NaN for a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
