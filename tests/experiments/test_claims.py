"""What the README says of the digits streams, measured: long for a test, but it is what the library is for."""

from __future__ import annotations

from functools import cache
from statistics import mean

import pytest

from cuber.experiments import Experiment, run
from cuber.training import Result

ONE_SAMPLE = 100 / 320 / 4 / 5
"""What one test sample of one old task in one of five seeds makes in BWT: machines may round it to either side."""


@cache
def learned(benchmark: str, method: str, seed: int, tasks: int | None = None) -> Result:
    return run(Experiment(benchmark, method, seed, tasks=tasks))


def averages(benchmark: str, method: str, seeds: range) -> tuple[float, float]:
    results = [learned(benchmark, method, seed) for seed in seeds]
    return mean(result.acc for result in results), mean(result.bwt or 0.0 for result in results)


def test_on_permuted_digits_gpm_forgets_less_than_finetune_and_trgp_and_cuber_know_more_than_gpm() -> None:
    """One seed and six tasks are enough: the differences are tens of points."""
    finetune, gpm, *others = (learned("permuted-digits", name, 0, 6) for name in ("finetune", "gpm", "trgp", "cuber"))
    assert (gpm.bwt or 0.0) > (finetune.bwt or 0.0) + 10
    for result in others:
        assert result.acc > gpm.acc + 10
        assert (result.bwt or 0.0) > (gpm.bwt or 0.0) + 5


def test_on_overlap_digits_old_tasks_get_better_with_cuber_and_not_less_than_with_trgp() -> None:
    seeds = range(5)
    acc, bwt = averages("overlap-digits", "cuber", seeds)
    trgp_acc, trgp_bwt = averages("overlap-digits", "trgp", seeds)
    assert bwt > 0
    assert bwt >= trgp_bwt - ONE_SAMPLE
    assert acc > trgp_acc


@pytest.mark.parametrize("method", ["ewc", "hat", "owm", "agem", "er"])
def test_on_split_digits_every_baseline_forgets_less_than_finetune_and_beats_chance_on_every_task(method: str) -> None:
    for seed in range(3):
        result = learned("split-digits", method, seed)
        assert (result.bwt or 0.0) > (learned("split-digits", "finetune", seed).bwt or 0.0)
        assert min(value for value in result.accuracy[-1] if value is not None) > 60  # of two classes


def test_on_split_digits_multitask_knows_more_than_finetune() -> None:
    for seed in range(3):
        assert learned("split-digits", "multitask", seed).acc > learned("split-digits", "finetune", seed).acc
