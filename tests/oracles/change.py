"""The sequential test for a change as its definitions say, in time that grows with the square of the stream."""

from __future__ import annotations

import math
from collections.abc import Sequence


def p_values(scores: Sequence[float], ties: Sequence[float]) -> list[float]:
    """The rank of each score among those up to it, from the top; equal ones are ordered at random."""
    found = []
    for last, score in enumerate(scores):
        seen = scores[: last + 1]
        larger, equal = sum(other > score for other in seen), sum(other == score for other in seen)
        found.append((larger + ties[last] * equal) / len(seen))
    return found


def martingale(bets: Sequence[float]) -> float:
    """The mean of the products of bets from batch k on, over all beginnings k, with weights 1 / (k (k + 1))."""
    started = sum(math.prod(bets[k - 1 :]) / (k * (k + 1)) for k in range(1, len(bets) + 1))
    return started + 1 / (len(bets) + 1)  # the weights of all beginnings that are to come


def cusum(bets: Sequence[float]) -> tuple[float, int]:
    """The largest product of bets that ends with the last one, and where it begins (from 0)."""
    products = [math.prod(bets[start:]) for start in range(len(bets))]
    return max(products), max(range(len(bets)), key=lambda start: products[start])
