"""Regime 3 asks for evidence, and its penalty is added once."""

from __future__ import annotations

from cuber import CUBER
from tests.loops import gradients, learn, loss_fn
from tests.models import CASES


def test_a_gradient_of_zero_says_nothing_for_an_old_task() -> None:
    learner = CUBER(CASES["mlp"].model(), eps1=0.0, eps2=-1.0)
    learn(learner, CASES["mlp"].loader(0))
    for gradient in gradients(learner, 0).values():
        gradient.norm = 0.0
    learner.begin_task(CASES["mlp"].loader(1), loss_fn)
    assert {regime.number for by_task in learner.regimes[1].values() for regime in by_task.values()} == {2}
