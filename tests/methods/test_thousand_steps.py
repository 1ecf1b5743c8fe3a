"""Rounding does not add up: after 1,000 steps the protected directions are where they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cuber import CUBER, GPM
from cuber.networks import MLP
from tests.loops import MakeOptimizer, Watch, learn, loss_fn, train, weights
from tests.models import CASES, CLASSES

CASE = CASES["mlp"]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.005),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.005, weight_decay=0.1),
}


def every(steps: int, act: Callable[[], None]) -> Callable[[], None]:
    taken = 0

    def count() -> None:
        nonlocal taken
        taken += 1
        if taken % steps == 0:
            act()

    return count


@pytest.mark.parametrize(
    ("kind", "optimizer"), [(GPM, "SGD"), (GPM, "momentum"), (GPM, "Adam"), (CUBER, "SGD"), (CUBER, "AdamW")]
)
def test_a_thousand_steps_without_an_end_of_epoch_do_not_drift(kind: type, optimizer: str) -> None:
    settings = {"threshold": 0.8} | ({"eps1": 0.1, "eps2": 1.1} if kind is CUBER else {})
    torch.manual_seed(0)
    learner = kind(MLP(8, 12, CLASSES, bias=True), **settings)
    learn(learner, CASE.loader(0, samples=4))
    loader = CASE.loader(1, samples=40, batch_size=8)
    learner.begin_task(loader, loss_fn)
    watch = Watch.over(learner)
    wrapped = learner.wrap(OPTIMIZERS[optimizer](learner.parameters()))
    train(learner, wrapped, loader, epochs=200, after_step=every(100, watch.held), end_epochs=False)
    watch.held()
    assert watch.moved() > 0.1
    learner.end_task(loader)


def test_the_end_of_an_epoch_restores_what_rounding_has_moved() -> None:
    learner = GPM(CASE.model(), threshold=0.8)
    learn(learner, CASE.loader(0, samples=4))
    learner.begin_task(CASE.loader(1), loss_fn)
    watch = Watch.over(learner)
    train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1)), CASE.loader(1), end_epochs=False)
    outside = weights(learner)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(1 + 1e-3)  # as a million steps might
    assert max(watch.drift().values()) > 1e-4
    learner.end_epoch()
    watch.held()
    for name, now in weights(learner).items():
        assert torch.allclose(now, outside[name], atol=1e-3), "directions that may move were restored too"


def test_rounding_does_not_add_up_over_ten_tasks() -> None:
    learner = GPM(CASE.model(), threshold=0.5, threshold_step=0.0)
    learn(learner, CASE.loader(0, samples=4))
    watch = Watch.over(learner)
    for task in range(1, 10):
        learn(learner, CASE.loader(task), OPTIMIZERS["Adam"], epochs=5)
    watch.held()


def test_protected_directions_are_held_at_a_large_learning_rate() -> None:
    learner = GPM(CASE.model(), threshold=0.8)
    learn(learner, CASE.loader(0, samples=4))
    loader = CASE.loader(1)
    learner.begin_task(loader, loss_fn)
    watch = Watch.over(learner)
    train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=2.0)), loader, epochs=10)
    watch.held()
    assert watch.moved() > 1
