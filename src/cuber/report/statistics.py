"""Confidence intervals and paired t-tests over seeds.

A figure that the values do not determine is None: one value has no deviation, equal values have no test.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
NO_SPREAD = 1e-9
"""Deviations of accuracies in percent below this are rounding errors."""


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for a single value.

    >>> deviation([1.0, 3.0])
    1.4142135623730951
    """
    if len(values) < 2:
        return None
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Confidence interval of the mean by Student's t; None for a single value, or where all are equal.

    >>> low, high = interval([1.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-10.706, 14.706)
    """
    return _t_test(values, confidence)[0]


def _t_test(values: Sequence[float], confidence: float) -> tuple[tuple[float, float] | None, float | None]:
    """The interval of the mean, and the p-value of a mean of 0."""
    spread = deviation(values)
    if spread is None or spread < NO_SPREAD:
        return None, None
    from scipy.special import stdtr, stdtrit  # imported here because means alone do not need it

    center, error, freedom = mean(values), spread / math.sqrt(len(values)), len(values) - 1
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    return (center - half, center + half), 2 * float(stdtr(freedom, -abs(center) / error))


@dataclass(frozen=True)
class Paired:
    """Difference between two variants that were measured with the same seeds."""

    count: int
    mean: float
    deviation: float | None
    interval: tuple[float, float] | None
    p: float | None
    """Of the two-sided paired t-test."""


def paired(ones: Sequence[float], others: Sequence[float], confidence: float = CONFIDENCE) -> Paired:
    """Difference ``ones - others``, pair by pair.

    >>> difference = paired([3.0, 5.0, 4.0], [2.0, 3.0, 1.0])
    >>> difference.mean, round(difference.p, 4)
    (2.0, 0.0742)
    """
    values = [one - other for one, other in zip(ones, others, strict=True)]
    return Paired(len(values), mean(values), deviation(values), *_t_test(values, confidence))


def rank_correlation(ones: Sequence[float], others: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where one side is constant.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 1000.0]), rank_correlation([1.0, 1.0], [0.0, 2.0])
    (1.0, None)
    """
    if len(ones) < 2:
        return None
    x, y = _centered_ranks(ones), _centered_ranks(others)
    squares = sum(rank**2 for rank in x) * sum(rank**2 for rank in y)
    return sum(a * b for a, b in zip(x, y, strict=True)) / math.sqrt(squares) if squares else None


def _centered_ranks(values: Sequence[float]) -> list[float]:
    """Ranks minus their mean; equal values share the mean of their ranks."""
    order = sorted(values)
    return [(bisect_left(order, value) + bisect_right(order, value) - len(order)) / 2 for value in values]
