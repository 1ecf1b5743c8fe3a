"""The sequential test for a change: its textbook form, and a false-alarm rate that holds for any law."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuber.subspace import Calibration, ChangeTest, TwoSidedTest, log_bets
from cuber.subspace.change import BINS
from tests.oracles import change as oracle

Draw = Callable[[torch.Generator, int], torch.Tensor]
LAWS: dict[str, Draw] = {
    "log-normal": lambda random, count: (2 * torch.randn(count, generator=random)).exp(),
    "Cauchy": lambda random, count: torch.empty(count).cauchy_(generator=random),
    "two values": lambda random, count: (torch.rand(count, generator=random) < 0.1).float(),
    "one value": lambda random, count: torch.ones(count),
}


@settings(max_examples=50, deadline=None)
@given(bets=st.lists(st.floats(0.05, 20.0), min_size=1, max_size=30))
def test_the_recursion_is_the_mixture_over_all_beginnings(bets: list[float]) -> None:
    test = ChangeTest()
    for bet in bets:
        test.add(math.log(bet))
    assert math.exp(test.log_evidence) == pytest.approx(oracle.martingale(bets), rel=1e-9)
    largest, start = oracle.cusum(bets)
    if largest > 1 + 1e-9:
        assert test.log_cusum == pytest.approx(math.log(largest), abs=1e-9)
        assert math.prod(bets[test.start :]) == pytest.approx(math.prod(bets[start:]), rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_p_values_are_ranks_among_all_scores_so_far(sizes: list[int], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    calibration = Calibration(0.0, 1.0)
    bins, ties, found = [], [], []
    for size in sizes:
        batch = calibration.bins(torch.randn(size, generator=random))
        tie = torch.rand(size, dtype=torch.float64, generator=random)
        found += calibration.p_values(batch, tie, add=True).tolist()
        bins += batch.tolist()
        ties += tie.tolist()
    assert found == pytest.approx(oracle.p_values(bins, ties))
    assert calibration.counts.sum() == sum(sizes)


def test_bets_have_mean_1_for_uniform_p_values_and_reward_small_ones() -> None:
    log_p = torch.linspace(-27, 0, 200_001, dtype=torch.float64)  # p from 2e-12: the integral over p = exp(log_p)
    mean = torch.trapezoid((log_bets(log_p.exp()) + log_p).exp(), log_p)
    assert float(mean) == pytest.approx(1 - math.exp(-27 * 0.3), abs=1e-4)  # the rest belongs to smaller ones
    bets = log_bets(torch.linspace(1e-6, 1, 1000, dtype=torch.float64))
    assert (bets.diff() < 0).all()


def alarms(draw: Draw, alpha: float, streams: int, batches: int = 20, size: int = 8) -> int:
    count = 0
    for seed in range(streams):
        random = torch.Generator().manual_seed(seed)
        calibration, test = Calibration.around(draw(random, 20)), TwoSidedTest()
        for _ in range(batches):
            bins = calibration.bins(draw(random, size))
            ties = torch.rand(size, dtype=torch.float64, generator=random)
            test.add(calibration.p_values(bins, ties, add=True))
            if test.log_evidence >= -math.log(alpha):
                count += 1
                break
    return count


@pytest.mark.parametrize("law", LAWS)
def test_the_false_alarm_rate_holds_for_scores_of_any_law(law: str) -> None:
    alpha, streams = 0.2, 60
    most = alpha * streams + 3 * math.sqrt(streams * alpha * (1 - alpha))
    assert alarms(LAWS[law], alpha, streams) <= most


@pytest.mark.parametrize("shift", [4, -4])
def test_a_change_is_noticed_in_its_first_batches_and_located(shift: int) -> None:
    random = torch.Generator().manual_seed(0)
    calibration, test = Calibration.around(torch.randn(50, generator=random)), TwoSidedTest()
    for batch in range(100):
        bins = calibration.bins(torch.randn(10, generator=random) + shift * (batch >= 90))
        ties = torch.rand(10, dtype=torch.float64, generator=random)
        test.add(calibration.p_values(bins, ties, add=True))
        assert (test.log_evidence >= math.log(1000)) == (batch >= 90), batch
    assert test.start == 90


def test_scores_far_away_share_the_last_bin_and_are_taken_out_again() -> None:
    calibration = Calibration.around(torch.tensor([1.0, 1.0, 1.0]))
    bins = calibration.bins(torch.tensor([-1e30, 1.0, 1e30]))
    assert bins.tolist() == [0, BINS // 2, BINS - 1]
    calibration.p_values(bins, torch.full((3,), 0.5), add=True)
    assert calibration.without(bins[1:]).counts.nonzero().flatten().tolist() == [0]


def test_many_scores_at_once_have_the_p_values_of_one_at_a_time() -> None:
    random = torch.Generator().manual_seed(0)
    bins, ties = Calibration(0.0, 1.0).bins(torch.randn(2500, generator=random)), torch.rand(2500, generator=random)
    one_by_one, at_once = Calibration(0.0, 1.0), Calibration(0.0, 1.0)
    expected = [float(one_by_one.p_values(bins[n : n + 1], ties[n : n + 1], add=True)) for n in range(2500)]
    assert at_once.p_values(bins, ties, add=True).tolist() == pytest.approx(expected)


def test_both_sides_bet_half_of_the_stake() -> None:
    p_values = torch.tensor([0.01, 0.6, 0.3], dtype=torch.float64)
    test, bets = TwoSidedTest(), [[math.exp(log_bets(torch.tensor([q])).item()) for q in (p, 1 - p)] for p in p_values]
    for p_value in p_values.split(1):
        test.add(p_value)
    sides = [oracle.martingale([both[side] for both in bets]) for side in (0, 1)]
    assert math.exp(test.log_evidence) == pytest.approx(sum(sides) / 2)
