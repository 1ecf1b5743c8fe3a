"""The learning rate with patience (algorithm.md, section 6)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuber import CuberError
from cuber.training import Schedule, TrainingConfig


def test_by_hand():
    schedule = Schedule(lr=0.1, patience=2, factor=10, floor=0.005)
    seen = [(schedule.observe(loss), round(schedule.lr, 6), schedule.stopped) for loss in (3, 2, 4, 1, 1, 1, 2, 2)]
    assert seen == [
        (True, 0.1, False),
        (True, 0.1, False),
        (False, 0.1, False),
        (True, 0.1, False),  # resets the patience
        (False, 0.1, False),  # as good as the best is not better
        (False, 0.01, False),
        (False, 0.01, False),
        (False, 0.001, True),
    ]


def test_nan_is_never_the_best():
    schedule = Schedule(lr=1.0, patience=1, factor=2, floor=0.3)
    assert not schedule.observe(math.nan)
    assert schedule.lr == 0.5
    assert schedule.observe(5.0)


@given(
    st.lists(st.floats(0, 10) | st.just(math.nan), max_size=60),
    st.integers(1, 5),
    st.floats(1.5, 10),
    st.floats(1e-4, 0.5),
)
def test_laws(losses, patience, factor, floor):
    schedule = Schedule(1.0, patience, factor, floor)
    since_best, divisions = 0, 0
    for count, loss in enumerate(losses, start=1):
        better = loss < min([other for other in losses[: count - 1] if other == other], default=math.inf)
        assert schedule.observe(loss) == better
        since_best = 0 if better else since_best + 1
        divisions += since_best > 0 and since_best % patience == 0
        assert schedule.lr == pytest.approx(factor**-divisions)
        assert schedule.stopped == (schedule.lr < floor)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"batch_size": -3}, "batch_size must be a whole number of at least 1, not -3"),
        ({"evaluation_batch_size": 0}, "evaluation_batch_size must be"),
        ({"patience": 0}, "patience must be a whole number of at least 1, not 0"),
        ({"lr": 0}, "lr must be a number above 0, not 0"),
        ({"lr": math.nan}, "lr must be a number above 0, not nan"),
        ({"lr": math.inf}, "lr must be a number above 0, not inf"),
        ({"lr": "fast"}, "lr must be a number above 0, not 'fast'"),
        ({"factor": 1.0}, "factor must be a number above 1, not 1.0"),
        ({"floor": 0}, "floor must be a number above 0, not 0"),
        ({"precision": "fp16"}, r"no precision 'fp16'; did you mean 'bf16'\? \(known: float32, bf16\)"),
        ({"precision": ["bf16"]}, "there is no precision"),
        ({"compile": 1}, "compile must be true or false, not 1"),
    ],
)
def test_settings_that_make_no_sense(wrong, sentence):
    with pytest.raises(CuberError, match=sentence):
        TrainingConfig(**{"epochs": 1, "lr": 0.1, **wrong})
