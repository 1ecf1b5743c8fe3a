"""A sequential test for a change in a stream of scores, with a false-alarm rate that holds for scores of any law.

Each score gets a conformal p-value: its rank among all scores since the test began, ties broken at random. While the
scores are exchangeable, these p-values are independent and uniform, whatever the law of the scores is (Vovk). A bet
against small p-values, ``e(p)``, then has mean 1, and the product of bets from any batch on is a martingale. A change
may begin at any batch, so the test mixes these products over all beginnings k, with weights that sum to 1::

    M_n = sum over k <= n of w_k * e_k * ... * e_n  +  sum over k > n of w_k,      w_k = 1 / (k (k + 1))

``M`` is a martingale with mean 1 too. By Ville's inequality it ever exceeds 1 / alpha with probability at most alpha,
however long the stream is. CUSUM, the largest product over k instead of their mixture, has no such bound; the k at
which it is largest is the most likely beginning of the change.

Half of the stake bets on small p-values (larger scores), the other half on small ``1 - p`` (smaller scores).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

BINS = 512
RESOLUTION = 16.0
"""Bins per unit of ``asinh`` of a standardized score: fine near the center, 6 % wide in the tails."""
POWER = 0.3
"""Of the bets. Smaller ones notice strong changes sooner, larger ones weaker changes."""
SMALLEST = 1e-12
"""Of p-values: bets are finite."""
AT_ONCE = 1000
"""Scores that are ranked among each other at a time."""


@dataclass
class Calibration:
    """How often each value of a score has occurred: scores are rounded to bins, so that memory does not grow.

    Rounding a score makes another score of it, so that p-values stay exact.

    Args:
        center: of the scores, roughly.
        scale: their spread, roughly.
        counts: scores seen in each bin.
    """

    center: float
    scale: float
    counts: Tensor = field(default_factory=lambda: torch.zeros(BINS, dtype=torch.int64))

    @classmethod
    def around(cls, scores: Tensor) -> Calibration:
        """Return an empty one with bins that suit scores like these."""
        scores = scores.double().cpu()
        center = float(scores.median())
        spread = float((scores - center).abs().median())
        return cls(center, max(spread, 1e-9 * (1 + abs(center))))

    def bins(self, scores: Tensor) -> Tensor:
        """Return the bin of each score."""
        standardized = (scores.double().cpu() - self.center) / self.scale
        return (RESOLUTION * standardized.asinh() + BINS // 2).round().clamp(0, BINS - 1).long()

    def p_values(self, bins: Tensor, ties: Tensor, *, add: bool) -> Tensor:
        """Return the p-value of each score: small for those that are larger than most.

        Args:
            bins: of the scores, in their order.
            ties: a uniform random number for each.
            add: whether each score counts among those before the next one, which makes p-values independent.
        """
        parts = zip(bins.split(AT_ONCE), ties.double().split(AT_ONCE), strict=True)
        return torch.cat([self._p_values(part, own, add) for part, own in parts])

    def _p_values(self, bins: Tensor, ties: Tensor, add: bool) -> Tensor:
        above = self.counts.flip(0).cumsum(0).flip(0) - self.counts
        larger, equal = above[bins], self.counts[bins] + 1
        total = self.counts.sum() + 1
        if add:
            before = torch.ones(len(bins), len(bins), dtype=torch.bool).tril(-1)
            larger = larger + ((bins.unsqueeze(0) > bins.unsqueeze(1)) & before).sum(1)
            equal = equal + ((bins.unsqueeze(0) == bins.unsqueeze(1)) & before).sum(1)
            total = total + torch.arange(len(bins))
            self.counts += torch.bincount(bins, minlength=BINS)
        return (larger + ties * equal) / total

    def including(self, scores: Tensor) -> Calibration:
        """Return it with more scores."""
        return Calibration(self.center, self.scale, self.counts + torch.bincount(self.bins(scores), minlength=BINS))

    def without(self, bins: Tensor) -> Calibration:
        """Return it without scores that were added."""
        return Calibration(self.center, self.scale, self.counts - torch.bincount(bins, minlength=BINS))


def log_bets(p_values: Tensor) -> Tensor:
    """Return the logarithm of the bet on each p-value, ``q p^(q - 1)`` with q = ``POWER``, whose mean is 1.

    It wins on average where the mean of ``-log p`` is above 1.7; it is 1 for scores that do not change.

    >>> [round(value, 3) for value in log_bets(torch.tensor([1e-3, 0.1, 1.0])).tolist()]
    [3.631, 0.408, -1.204]
    """
    return math.log(POWER) + (POWER - 1) * p_values.double().clamp(SMALLEST, 1.0).log()


def log_odds_against(p_values: Tensor) -> float:
    """Return the logarithm of the bets of both sides together: large where scores are of another law."""
    larger, smaller = (float(log_bets(values).sum()) for values in (p_values, 1 - p_values))
    return _log_add(larger, smaller) - math.log(2)


@dataclass
class ChangeTest:
    """The martingale ``M`` of one side, batch by batch, and the most likely beginning of a change.

    Args:
        batches: number of batches so far.
        log_started: logarithm of the part of ``M`` in which a change has begun.
        log_cusum: logarithm of the largest product of bets that ends with the last batch.
        start: number of the batch, from 0, with which that product begins.
    """

    batches: int = 0
    log_started: float = -math.inf
    log_cusum: float = -math.inf
    start: int = 0

    def add(self, log_bet: float) -> None:
        """Add the bets of a batch, by the logarithm of their product."""
        if self.log_cusum <= 0:
            self.log_cusum, self.start = 0.0, self.batches
        self.log_cusum += log_bet
        self.batches += 1
        log_weight = -math.log(self.batches * (self.batches + 1))
        self.log_started = _log_add(self.log_started, log_weight) + log_bet

    @property
    def log_evidence(self) -> float:
        """The logarithm of ``M``: at least ``log(1 / alpha)`` with probability at most alpha if nothing changes."""
        return _log_add(self.log_started, -math.log(self.batches + 1))


@dataclass
class TwoSidedTest:
    """The martingale of both sides: scores may become larger or smaller.

    Args:
        larger: the side that bets on small p-values.
        smaller: the side that bets on large ones.
    """

    larger: ChangeTest = field(default_factory=ChangeTest)
    smaller: ChangeTest = field(default_factory=ChangeTest)

    def add(self, p_values: Tensor) -> None:
        """Add the p-values of a batch."""
        self.larger.add(float(log_bets(p_values).sum()))
        self.smaller.add(float(log_bets(1 - p_values).sum()))

    @property
    def log_evidence(self) -> float:
        """The logarithm of the martingale, with the same bound as that of one side."""
        return _log_add(self.larger.log_evidence, self.smaller.log_evidence) - math.log(2)

    @property
    def start(self) -> int:
        """Number of the batch, from 0, at which a change has most likely begun."""
        return max(self.larger, self.smaller, key=lambda side: side.log_cusum).start


def _log_add(first: float, second: float) -> float:
    high, low = max(first, second), min(first, second)
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high
