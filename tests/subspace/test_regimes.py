"""Who is a candidate, who is selected, and who may change."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuber.subspace import Pool, Regime, decide_regimes, projection_ratios
from tests.oracles.dense import projector


def pool(dimension: int, owners: list[list[int]]) -> Pool:
    basis = torch.linalg.qr(torch.randn(dimension, len(owners[0]), dtype=torch.float64)).Q
    return Pool(basis, torch.tensor(owners, dtype=torch.bool))


def test_one_product_gives_the_ratio_of_every_task() -> None:
    old = pool(7, [[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    gradient = torch.randn(4, 7, dtype=torch.float64)
    expected = [float((gradient @ projector(old.basis_of(j))).norm() / gradient.norm()) for j in range(3)]
    assert projection_ratios(gradient, old) == pytest.approx(expected)


def test_no_gradient_or_no_pool_projects_on_nobody() -> None:
    assert projection_ratios(torch.zeros(2, 5), pool(5, [[1, 0], [1, 1]])) == [0.0, 0.0]
    assert projection_ratios(torch.ones(2, 5), Pool.empty(5, 3, like=torch.zeros(1))) == [0.0, 0.0, 0.0]


def numbers(ratios: list[float], cosines: list[float], eps1: float, eps2: float, most: int) -> list[int]:
    decided = decide_regimes(ratios, lambda j: (cosines[j] >= eps2, cosines[j]), eps1=eps1, most=most)
    assert list(decided) == list(range(len(ratios)))
    return [regime.number for regime in decided.values()]


@pytest.mark.parametrize(
    ("ratios", "cosines", "expected"),
    [
        ([], [], []),
        ([0.49], [1.0], [1]),
        ([0.5], [0.0], [3]),
        ([0.5], [-0.01], [2]),
        ([0.6, 0.9, 0.8], [1.0, 1.0, -1.0], [1, 3, 2]),
        ([0.9, 0.9, 0.9], [1.0, 1.0, 1.0], [3, 3, 1]),
    ],
    ids=["no old task", "too little", "at both limits", "against", "the two nearest", "equally near"],
)
def test_regimes_by_hand(ratios: list[float], cosines: list[float], expected: list[int]) -> None:
    assert numbers(ratios, cosines, 0.5, 0.0, 2) == expected


old_tasks = st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1)), max_size=8)


@given(old_tasks, st.floats(0, 1.2), st.floats(-1, 1.2), st.integers(0, 4), st.randoms(use_true_random=False))
def test_the_laws_of_selection_hold_in_any_order_of_the_old_tasks(
    old: list[tuple[float, float]], eps1: float, eps2: float, most: int, random: object
) -> None:
    old = list({ratio: (ratio, cosine) for ratio, cosine in old}.values())  # ties are broken by age
    decided = numbers([r for r, _ in old], [c for _, c in old], eps1, eps2, most)
    selected = [ratio for (ratio, _), number in zip(old, decided, strict=True) if number != 1]
    assert len(selected) == min(most, sum(ratio >= eps1 for ratio, _ in old))
    assert all(ratio >= eps1 for ratio in selected)
    for (ratio, cosine), number in zip(old, decided, strict=True):
        if number == 1 and ratio >= eps1 and selected:
            assert ratio <= min(selected)
        if number != 1:
            assert (number == 3) == (cosine >= eps2)
    order = list(range(len(old)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = numbers([old[i][0] for i in order], [old[i][1] for i in order], eps1, eps2, most)
    assert shuffled == [decided[i] for i in order]


def test_only_selected_tasks_are_asked_for_their_cosine() -> None:
    asked: list[int] = []

    def answer(task: int) -> tuple[bool, float]:
        asked.append(task)
        return True, 0.25

    decided = decide_regimes([0.1, 0.7, 0.6, 0.9], answer, eps1=0.5, most=2)
    assert sorted(asked) == [1, 3]
    assert [decided[j].cosine for j in range(4)] == [None, 0.25, None, 0.25]
    assert [decided[j].ratio for j in range(4)] == [0.1, 0.7, 0.6, 0.9]


def test_falling_is_to_regime_2_and_remembers_the_epoch() -> None:
    regime = Regime(3, ratio=0.8, cosine=0.1)
    regime.fall(4)
    assert regime == Regime(2, ratio=0.8, cosine=0.1, fell=4)


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_of_tasks_that_own_the_same_columns_the_first_are_taken(columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(40, columns, generator=generator, dtype=torch.float64)).Q
    pool = Pool(basis, torch.ones(3, columns, dtype=torch.bool))
    ratios = projection_ratios(torch.randn(6, 40, generator=generator, dtype=torch.float64), pool)
    assert ratios[0] == ratios[1] == ratios[2]
    decided = decide_regimes(ratios, lambda _: (False, None), eps1=0.0, most=2)
    assert [decided[task].number for task in range(3)] == [2, 2, 1]
