"""Weights are moved back along protected directions where optimizers or rounding have left them."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from cuber import CUBER, GPM, TRGP, FineTune
from cuber.errors import CuberWarning
from cuber.layers.backends import FastBackend
from tests.loops import MakeOptimizer, Watch

Loader = list[tuple[Tensor, Tensor]]
MAKERS: dict[str, MakeOptimizer] = {
    "plain": lambda parameters: SGD(parameters, lr=0.1),
    "momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: AdamW(parameters, lr=0.01),
}


def data(task: int) -> Loader:
    """Samples in six of 20 dimensions; three of the six are the same in all tasks."""
    generator = torch.Generator().manual_seed(task)
    mix = torch.randn(3, 20, generator=torch.Generator().manual_seed(9))
    mix = torch.cat([mix, torch.randn(3, 20, generator=generator)])
    x = torch.randn(64, 6, generator=generator) @ mix
    return [(x, torch.randint(4, (64,), generator=generator))]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))


def train(learner: Any, optimizer: Optimizer, loader: Loader, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(learner.model(loader[0][0]), loader[0][1]).backward()
        optimizer.step()


def begin(learner: Any, task: int, make: MakeOptimizer = MAKERS["plain"]) -> Optimizer:
    learner.begin_task(data(task), functional.cross_entropy)
    return learner.wrap(make(learner.parameters()))  # type: ignore[no-any-return]


def learn(learner: Any, task: int, make: MakeOptimizer = MAKERS["plain"], steps: int = 5) -> None:
    train(learner, begin(learner, task, make), data(task), steps)
    learner.end_task(data(task))


def largest_drift(watch: Watch) -> float:
    return max(watch.drift().values())


@pytest.mark.parametrize("threshold", [0.6, 0.97])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", [GPM, TRGP, CUBER])
def test_autocast_around_begin_task_and_end_task_changes_nothing(kind: type, make: str, threshold: float) -> None:
    settings = {GPM: {}, TRGP: {"eps1": 0.0}, CUBER: {"eps1": 0.0, "eps2": 2.0}}[kind]
    learner = kind(network(), threshold=threshold, **settings)
    learn(learner, 0, MAKERS[make])
    for task, around in enumerate(("begin_task", "end_task", "both"), start=1):
        watch, loader = Watch.over(learner), data(task)
        with torch.autocast("cpu", torch.bfloat16) if around != "end_task" else nullcontext():
            learner.begin_task(loader, functional.cross_entropy)
        optimizer = learner.wrap(MAKERS[make](learner.parameters()))
        train(learner, optimizer, loader, 10)
        with torch.autocast("cpu", torch.bfloat16) if around != "begin_task" else nullcontext():
            learner.end_task(loader)
        assert largest_drift(watch) < 1e-6


def test_slow_decay_does_not_add_up_over_many_tasks() -> None:
    """The drift of each task is below rounding; the sum over all tasks is not."""
    learner = GPM(network())
    learn(learner, 0)
    watch = Watch.over(learner)
    for task in range(1, 25):
        learn(learner, task, lambda parameters: SGD(parameters, lr=1e-4, weight_decay=4e-3), steps=10)
    assert largest_drift(watch) < 2e-6  # decay alone would come to 1e-4


@pytest.mark.parametrize(("make", "restored"), [("plain", 0), ("momentum", 0), ("AdamW", 10)])
def test_weights_are_restored_after_steps_that_leave_the_gradients_subspace_only(make: str, restored: int) -> None:
    learner = GPM(network())
    learn(learner, 0)
    optimizer = begin(learner, 1, MAKERS[make])
    restore = FastBackend.restore_protected
    with mock.patch.object(FastBackend, "restore_protected", autospec=True, side_effect=restore) as called:
        train(learner, optimizer, data(1), 10)
        assert called.call_count == restored * len(learner.layers)
        learner.end_epoch()
        assert called.call_count == (restored + 1) * len(learner.layers)


def test_drift_is_reported_relative_to_the_weight_when_the_task_began() -> None:
    learner = GPM(network())
    learn(learner, 0)
    begin(learner, 1)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.zero_()
    with pytest.warns(CuberWarning) as reported:
        learner.end_task(data(1))
    shares = [float(str(one.message).split("moved by ")[1].split("%")[0]) for one in reported]
    assert len(shares) == 2
    assert all(10 < share <= 100 for share in shares)


def test_a_task_that_could_not_begin_leaves_no_anchors() -> None:
    learner = TRGP(network(), eps1=0.0)
    learn(learner, 0)
    with (
        mock.patch("cuber.core.pooled.supports_of", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        begin(learner, 1)
    assert not learner.anchors
    assert not learner.scalings
    assert all(layer.constraint is None for layer in learner.layers.values())


def test_a_before_step_that_is_set_on_the_learner_is_called() -> None:
    learner, seen = FineTune(network()), []
    learner.before_step = seen.append  # type: ignore[method-assign, assignment]
    optimizer = begin(learner, 0)
    train(learner, optimizer, data(0), 1)
    assert seen == [optimizer]


@pytest.mark.parametrize("backend", ["plain", "fast"])
@pytest.mark.parametrize("make", MAKERS)
def test_a_demoted_column_is_held_where_it_was_also_after_resuming(make: str, backend: str) -> None:
    settings: dict[str, Any] = {"eps1": 0.0, "eps2": -1.0, "lam": 0.1, "penalty": "norm", "threshold": 0.9}
    learner = CUBER(network(), backend=backend, **settings)
    for task in range(2):
        learn(learner, task)
    optimizer = begin(learner, 2, MAKERS[make])
    train(learner, optimizer, data(2), 3)
    free = {name: ~memory.protected_columns() for name, memory in learner.memory.items()}
    at_demotion = {name: learner.displacement(name) for name in learner.layers}
    learner.eps2 = 2.0
    with torch.autocast("cpu", torch.bfloat16):
        learner.end_epoch()
    assert any(regime.demoted_at is not None for regime in learner.regimes[-1]["0"].values())
    assert any(float(at_demotion[name][:, free[name]].norm()) > 1e-3 for name in free)
    train(learner, optimizer, data(2), 3)
    twin = CUBER(network(), backend=backend, **{**settings, "eps2": learner.eps2})
    twin.load_state_dict(learner.state_dict())
    twin.model.load_state_dict(learner.model.state_dict())
    for one in (learner, twin):
        with torch.no_grad():
            for parameter in one.model.parameters():
                parameter += 0.01
        one.optimizers.restore_protected()
        for name, before in at_demotion.items():
            assert torch.allclose(one.displacement(name), before, atol=1e-5)
    for ours, theirs in zip(learner.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CuberWarning)  # what was free when the task began is not drift
        learner.end_task(data(2))
