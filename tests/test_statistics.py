"""Statistics, computed by hand; quantiles of Student's t from the tables of the textbooks."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from cuber.report import statistics


def test_the_deviation_by_hand():
    values = [2.0, 4.0, 4.0, 6.0]  # squares of the distances to 4: 4 + 0 + 0 + 4
    assert statistics.deviation(values) == pytest.approx(math.sqrt(8 / 3))


def test_the_interval_of_a_mean_by_hand():
    # Deviation 2, standard error 2 / sqrt(3); t of 2 degrees of freedom at 97.5 %: 4.3027
    low, high = statistics.paired([2.0, 4.0, 6.0], [0.0, 0.0, 0.0]).interval
    assert low == pytest.approx(4 - 4.3027 * 2 / math.sqrt(3), abs=1e-3)
    assert high == pytest.approx(4 + 4.3027 * 2 / math.sqrt(3), abs=1e-3)


def test_the_paired_test_by_hand():
    # Differences 1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9, deviation sqrt(14 / 3), t = 3 / (sqrt(14 / 3) / 2) = 2.7775
    difference = statistics.paired([11.0, 22.0, 33.0, 46.0], [10.0, 20.0, 30.0, 40.0])
    error = math.sqrt(14 / 3) / 2
    assert difference.count == 4
    assert difference.mean == 3
    assert difference.deviation == pytest.approx(2 * error)
    # t of 3 degrees of freedom at 97.5 %: 3.1824; the test's own p, from the closed form of its distribution
    assert difference.interval == pytest.approx((3 - 3.1824 * error, 3 + 3.1824 * error), abs=1e-3)
    x = 3 / error / math.sqrt(3)
    assert difference.p == pytest.approx(1 - 2 / math.pi * (x / (1 + x * x) + math.atan(x)))
    assert difference.p == pytest.approx(0.0691, abs=1e-4)


def test_two_pairs_are_enough():
    # One degree of freedom is Cauchy's distribution: p = 1 - 2 atan(t) / pi, and t = 2 / (sqrt(2) / sqrt(2)) = 2
    difference = statistics.paired([1.0, 3.0], [0.0, 0.0])
    assert difference.p == pytest.approx(1 - 2 * math.atan(2) / math.pi)


def test_what_one_pair_cannot_tell_is_none():
    assert statistics.deviation([3.0]) is None
    assert statistics.paired([3.0], [1.0]) == statistics.Paired(1, 2.0, None, None, None)


def test_differences_without_spread_have_no_test():
    difference = statistics.paired([0.3, 0.2], [0.1, 0.0])  # 0.2 both times, but for rounding
    assert (difference.interval, difference.p) == (None, None)
    assert difference.mean == pytest.approx(0.2)


def test_pairs_are_pairs():
    with pytest.raises(ValueError, match="shorter"):
        statistics.paired([1.0, 2.0], [1.0])


@given(st.lists(st.integers(-100, 100), min_size=2, max_size=8).filter(lambda values: len(set(values)) > 1))
def test_the_interval_and_the_test_agree(values):
    difference = statistics.paired([float(value) for value in values], [0.0] * len(values))
    low, high = difference.interval
    assert (low <= 0 <= high) == (difference.p >= 1 - statistics.CONFIDENCE)
    opposite = statistics.paired([0.0] * len(values), [float(value) for value in values])
    assert opposite.p == pytest.approx(difference.p)
    assert opposite.interval == pytest.approx((-high, -low))


def test_scipy_is_imported_only_when_needed():
    script = "import sys, cuber.report.statistics; assert not {'scipy', 'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=20))
def test_rank_correlation_is_scipys_with_ties_too(pairs):
    ones, others = [float(one) for one, _ in pairs], [float(other) for _, other in pairs]
    found = statistics.rank_correlation(ones, others)
    if len(set(ones)) == 1 or len(set(others)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(scipy.stats.spearmanr(ones, others).statistic)


def test_nothing_is_correlated_with_nothing():
    assert statistics.rank_correlation([], []) is None
