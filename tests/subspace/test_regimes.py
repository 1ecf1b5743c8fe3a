"""Which old tasks are candidates, which are selected, and which may change."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cuber import CUBER
from cuber.subspace import LayerMemory, LearnedScaling, Pool, PrunedGradient, Regime
from tests.oracles.dense import projector


def pool(dimension: int, owners: list[list[int]]) -> Pool:
    basis = torch.linalg.qr(torch.randn(dimension, len(owners[0]), dtype=torch.float64)).Q
    return Pool(basis, torch.tensor(owners, dtype=torch.bool))


def test_one_product_gives_the_ratio_of_every_task() -> None:
    old = pool(7, [[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    gradient = torch.randn(4, 7, dtype=torch.float64)
    expected = [float((gradient @ projector(old.basis_of(j))).norm() / gradient.norm()) for j in range(3)]
    assert old.projection_ratios(gradient) == pytest.approx(expected)


def test_ratios_are_0_without_gradient_or_without_columns() -> None:
    assert pool(5, [[1, 0], [1, 1]]).projection_ratios(torch.zeros(2, 5)) == [0.0, 0.0]
    assert Pool.empty(5, 3, like=torch.zeros(1)).projection_ratios(torch.ones(2, 5)) == [0.0, 0.0, 0.0]


@dataclass
class GivenMemory:
    """A memory whose ratios and cosines are given."""

    ratios: list[float]
    cosines: list[float | None]
    asked: set[int] = field(default_factory=set)

    def projection_ratios(self, gradient: Tensor) -> list[float]:
        return self.ratios

    def cosine(self, task: int, gradient: Tensor) -> float | None:
        self.asked.add(task)
        return self.cosines[task]


def decide(memory: Any, *, eps1: float = 0.5, eps2: float = 0.0, selected: int = 2) -> dict[int, Regime]:
    learner = CUBER(nn.Linear(2, 2))
    learner.eps1, learner.eps2, learner.selected, learner.tasks = eps1, eps2, selected, len(memory.projection_ratios(0))
    return learner.decide_regimes(memory, torch.ones(2, 2))


def numbers(ratios: list[float], cosines: list[Any], **settings: Any) -> list[int]:
    decided = decide(GivenMemory(ratios, cosines), **settings)
    assert list(decided) == list(range(len(ratios)))
    return [regime.number for regime in decided.values()]


@pytest.mark.parametrize(
    ("ratios", "cosines", "expected"),
    [
        ([], [], []),
        ([0.49], [1.0], [1]),
        ([0.5], [0.0], [3]),
        ([0.5], [-0.01], [2]),
        ([0.5], [None], [2]),
        ([0.6, 0.9, 0.8], [1.0, 1.0, -1.0], [1, 3, 2]),
        ([0.9, 0.9, 0.9], [1.0, 1.0, 1.0], [3, 3, 1]),
    ],
    ids=[
        "no old task",
        "small ratio",
        "at both thresholds",
        "negative cosine",
        "no gradient kept",
        "two largest ratios",
        "equal ratios",
    ],
)
def test_regimes_by_hand(ratios: list[float], cosines: list[float | None], expected: list[int]) -> None:
    assert numbers(ratios, cosines) == expected


old_tasks = st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1)), max_size=8)


@given(old_tasks, st.floats(0, 1.2), st.floats(-1, 1.2), st.integers(0, 4), st.randoms(use_true_random=False))
def test_the_laws_of_selection_hold_in_any_order_of_the_old_tasks(
    old: list[tuple[float, float]], eps1: float, eps2: float, selected: int, random: Random
) -> None:
    old = list({ratio: (ratio, cosine) for ratio, cosine in old}.values())  # ties are broken by order
    settings: dict[str, Any] = {"eps1": eps1, "eps2": eps2, "selected": selected}
    decided = numbers([r for r, _ in old], [c for _, c in old], **settings)
    reused = [ratio for (ratio, _), number in zip(old, decided, strict=True) if number != 1]
    assert len(reused) == min(selected, sum(ratio >= eps1 for ratio, _ in old))
    assert all(ratio >= eps1 for ratio in reused)
    for (ratio, cosine), number in zip(old, decided, strict=True):
        if number == 1 and ratio >= eps1 and reused:
            assert ratio <= min(reused)
        if number != 1:
            assert (number == 3) == (cosine >= eps2)
    order = list(range(len(old)))
    random.shuffle(order)
    shuffled = numbers([old[i][0] for i in order], [old[i][1] for i in order], **settings)
    assert shuffled == [decided[i] for i in order]


def test_cosines_are_computed_for_selected_tasks_only() -> None:
    memory = GivenMemory([0.1, 0.7, 0.6, 0.9], [0.25] * 4)
    decided = decide(memory)
    assert memory.asked == {1, 3}
    assert [decided[j].cosine for j in range(4)] == [None, 0.25, None, 0.25]
    assert [decided[j].ratio for j in range(4)] == [0.1, 0.7, 0.6, 0.9]


def test_a_demoted_task_is_in_regime_2_and_keeps_the_epoch() -> None:
    regime = Regime(3, ratio=0.8, cosine=0.1)
    regime.demote(4)
    assert regime == Regime(2, ratio=0.8, cosine=0.1, demoted_at=4)
    assert (regime.number, regime.at_start) == (2, 3)


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_of_tasks_that_own_the_same_columns_the_first_are_taken(columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(40, columns, generator=generator, dtype=torch.float64)).Q
    same = Pool(basis, torch.ones(3, columns, dtype=torch.bool))
    ratios = same.projection_ratios(torch.randn(6, 40, generator=generator, dtype=torch.float64))
    assert ratios[0] == ratios[1] == ratios[2]
    assert numbers(ratios, [None] * 3, eps1=0.0) == [2, 2, 1]


def memory_of_three() -> LayerMemory:
    """Three tasks with two columns each; the third scales what the first has learned."""
    owners = torch.eye(3, dtype=torch.bool).repeat_interleave(2, dim=1)
    scaling = LearnedScaling([0], torch.zeros(4, 4), [])
    regimes = [{}, {0: Regime()}, {0: Regime(2), 1: Regime()}, {0: Regime(3), 1: Regime(3), 2: Regime(1)}]
    return LayerMemory(torch.eye(8)[:, :6], owners, [None] * 3, [None] * 3, [None, None, scaling], regimes)


def test_protected_is_what_any_task_outside_regime_3_reads_also_through_its_scaling() -> None:
    memory = memory_of_three()
    assert memory.columns_read([1]).tolist() == [False, False, True, True, False, False]
    assert memory.columns_read([2]).tolist() == [True, True, False, False, True, True]
    assert memory.protected_columns().tolist() == [True, True, False, False, True, True]
    memory.regimes[-1][1].demote(2)
    assert memory.protected_columns().all()
    assert memory.protected_columns(at_start=True).tolist() == [True, True, False, False, True, True]
    assert (memory.in_regime(3), memory.in_regime(2, 3), memory.in_regime(1)) == ([0], [0, 1], [2])


def test_there_is_no_cosine_with_a_gradient_that_was_not_kept_or_is_0() -> None:
    memory = memory_of_three()
    memory.gradients = [PrunedGradient.of(torch.ones(2, 8), 1.0), PrunedGradient.of(torch.zeros(2, 8), 1.0), None]
    assert memory.cosine(0, torch.ones(2, 8)) == pytest.approx(1.0)
    assert memory.cosine(1, torch.ones(2, 8)) is None
    assert memory.cosine(2, torch.ones(2, 8)) is None
