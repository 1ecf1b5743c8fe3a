"""Deviations, paired t-tests and rank correlations; None where the values do not determine a figure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation, fmean, stdev

from cuber.errors import needs_extra

CONFIDENCE = 0.95
NO_SPREAD = 1e-9
"""Deviations of accuracies in percent below this are rounding errors."""


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for a single value."""
    return stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Paired:
    """Difference between two variants that were measured with the same seeds."""

    count: int
    mean: float
    deviation: float | None
    interval: tuple[float, float] | None = None
    """Confidence interval of the mean by Student's t; None for one pair, or where all pairs differ equally."""
    p: float | None = None
    """Of the two-sided paired t-test; None where the interval is."""


def paired(ones: Sequence[float], others: Sequence[float]) -> Paired:
    """Difference ``ones - others``, pair by pair.

    >>> difference = paired([3.0, 5.0, 4.0], [2.0, 3.0, 1.0])
    >>> difference.mean, round(difference.p, 4)
    (2.0, 0.0742)
    """
    values = [one - other for one, other in zip(ones, others, strict=True)]
    count, mean, spread = len(values), fmean(values), deviation(values)
    if spread is None or spread < NO_SPREAD:
        return Paired(count, mean, spread)
    with needs_extra("report", "a test of paired differences"):
        from scipy.special import stdtr, stdtrit  # imported here because means alone do not need it

    error, freedom = spread / math.sqrt(count), count - 1
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(mean) / error))
    return Paired(count, mean, spread, (mean - half, mean + half), p)


def rank_correlation(ones: Sequence[float], others: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where one side is constant.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 1000.0]), rank_correlation([1.0, 1.0], [0.0, 2.0])
    (1.0, None)
    """
    try:
        return correlation(_ranks(ones), _ranks(others))
    except StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; equal values share the mean of their ranks."""
    order = sorted(values)
    return [(bisect_left(order, value) + bisect_right(order, value) - 1) / 2 for value in values]
