"""What a few numbers say about those that were not measured: plain floats, Student's t.

A figure that the numbers do not decide is None: one alone has no spread, numbers without spread have no test.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
NO_SPREAD = 1e-9
"""Accuracies in percent that are nearer to each other than this differ by rounding alone."""


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean.

    >>> mean([1.0, 2.0, 6.0])
    3.0
    """
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of the population that the values are a sample of; None for one alone.

    >>> deviation([1.0, 3.0])
    1.4142135623730951
    """
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Where the mean of the population lies, as far as the sample tells; None for one alone, or without spread.

    >>> low, high = interval([1.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-10.706, 14.706)
    """
    error = _standard_error(values)
    if error is None:
        return None
    from scipy.special import stdtrit  # here, since whoever only wants a mean need not wait for it

    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    return mean(values) - half, mean(values) + half


@dataclass(frozen=True)
class Paired:
    """How much higher one of two things is, measured under the same conditions several times."""

    count: int
    mean: float
    deviation: float | None
    interval: tuple[float, float] | None
    p: float | None
    """Of the two-sided t-test: how often chance alone would bring about a mean so far from 0."""


def paired(ones: Sequence[float], others: Sequence[float], confidence: float = CONFIDENCE) -> Paired:
    """The difference of ``ones`` to ``others``, which were measured pair by pair.

    >>> difference = paired([3.0, 5.0, 4.0], [2.0, 3.0, 1.0])
    >>> difference.mean, round(difference.p, 4)
    (2.0, 0.0742)
    """
    differences = [one - other for one, other in zip(ones, others, strict=True)]
    return Paired(
        len(differences), mean(differences), deviation(differences), interval(differences, confidence), _p(differences)
    )


def rank_correlation(ones: Sequence[float], others: Sequence[float]) -> float | None:
    """Spearman's: 1 where both rise together, -1 where one falls as the other rises; None where one does not change.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 1000.0]), rank_correlation([1.0, 1.0], [0.0, 2.0])
    (1.0, None)
    """
    if len(ones) < 2:
        return None
    x, y = (_from_mean(_ranks(values)) for values in (ones, others))
    spreads = [math.fsum(rank**2 for rank in ranks) for ranks in (x, y)]
    if min(spreads) == 0:
        return None
    return math.fsum(a * b for a, b in zip(x, y, strict=True)) / math.sqrt(spreads[0] * spreads[1])


def _ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values share the mean of their ranks."""
    order = sorted(values)
    return [(bisect_left(order, value) + bisect_right(order, value) + 1) / 2 for value in values]


def _from_mean(values: Sequence[float]) -> list[float]:
    centre = mean(values)
    return [value - centre for value in values]


def _p(values: Sequence[float]) -> float | None:
    error = _standard_error(values)
    if error is None:
        return None
    from scipy.special import stdtr

    return 2 * float(stdtr(len(values) - 1, -abs(mean(values)) / error))


def _standard_error(values: Sequence[float]) -> float | None:
    spread = deviation(values)
    return None if spread is None or spread < NO_SPREAD else spread / math.sqrt(len(values))
