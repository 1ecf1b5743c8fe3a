"""Regime 3 asks for evidence, and its penalty is added once."""

from __future__ import annotations

import torch

from cuber import CUBER
from tests.loops import learn, loss_fn
from tests.models import CASES


def test_a_gradient_of_zero_says_nothing_for_an_old_task() -> None:
    learner = CUBER(CASES["mlp"].model(), eps1=0.0, eps2=-1.0)
    learn(learner, CASES["mlp"].loader(0))
    for gradient in learner.gradients[0].values():
        gradient.norm = 0.0
    learner.begin_task(CASES["mlp"].loader(1), loss_fn)
    assert {regime.number for by_task in learner.regimes[1].values() for regime in by_task.values()} == {2}


def test_the_penalty_is_added_once_where_weights_and_biases_have_optimizers_of_their_own() -> None:
    case = CASES["mlp"]
    learner = CUBER(case.model(), eps1=0.0, eps2=-1.0, lam=0.5)
    learn(learner, case.loader(0))
    learner.begin_task(case.loader(1), loss_fn)
    named = dict(learner.named_parameters())
    biases = [parameter for name, parameter in named.items() if name.endswith("bias")]
    others = [parameter for name, parameter in named.items() if not name.endswith("bias")]
    layer = next(iter(learner.layers.values()))
    assert learner._strength(layer, torch.optim.SGD(biases, lr=0.1), 1) == 0
    assert learner._strength(layer, torch.optim.SGD(others, lr=0.1), 1) == 0.5
