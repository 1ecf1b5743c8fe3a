"""The figures, computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuber import metrics

MATRIX = [
    [90.0, None, None, None],
    [94.0, 80.0, None, None],
    [92.0, 70.0, 60.0, None],
    [88.0, 75.0, 66.0, 99.0],
]


def test_by_hand():
    assert metrics.average_accuracy(MATRIX) == pytest.approx((88 + 75 + 66 + 99) / 4)
    assert metrics.backward_transfer(MATRIX) == pytest.approx((-2 - 5 + 6) / 3)
    assert metrics.forgetting(MATRIX) == pytest.approx((6 + 5 + 0) / 3)
    assert metrics.backward_transfer_of_selected(MATRIX, task=1, old=0) == 4
    assert metrics.backward_transfer_of_selected(MATRIX, task=3, old=2) == 6
    assert metrics.diagonal(MATRIX) == [90, 80, 60, 99]


def test_with_one_task_there_is_nothing_to_transfer_back_to():
    assert metrics.average_accuracy([[91.0]]) == 91
    assert metrics.backward_transfer([[91.0]]) is None
    assert metrics.forgetting([[91.0]]) is None


def test_tasks_learned_at_once_have_one_row_and_nothing_to_transfer_back_to():
    matrix = [[91.0, 92.0, 96.0]]
    assert metrics.average_accuracy(matrix) == 93
    assert metrics.diagonal(matrix) == [91, 92, 96]
    assert metrics.old_tasks(matrix) == 0
    assert metrics.backward_transfer(matrix) is None
    assert metrics.forgetting(matrix) is None
    assert [metrics.old_tasks(MATRIX[:rows]) for rows in range(1, 5)] == [0, 1, 2, 3]


def test_most_selected_counts_layers_and_those_that_were_demoted():
    def regime(number, demoted_at=None):
        return {"regime": number, "demoted_at": demoted_at}

    regimes = {
        "first": {0: regime(3), 1: regime(2, demoted_at=4)},
        "second": {0: regime(2), 1: regime(3)},
        "third": {0: regime(1), 1: regime(2)},
    }
    assert metrics.most_selected(regimes) == 1
    assert metrics.most_selected({"first": {0: regime(1), 1: regime(2)}}) is None
    assert metrics.most_selected({}) is None


@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_laws(tasks, random):
    matrix = [[random.uniform(0, 100) if j <= i else None for j in range(tasks)] for i in range(tasks)]
    acc, bwt, lost = metrics.average_accuracy(matrix), metrics.backward_transfer(matrix), metrics.forgetting(matrix)
    assert 0 <= acc <= 100
    if tasks > 1:
        assert lost >= 0
        assert lost >= -bwt - 1e-9
