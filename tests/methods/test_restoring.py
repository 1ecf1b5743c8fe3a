"""Protected directions stay where they are: with any optimizer, at any rate, whatever is open around the calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from cuber import CUBER, GPM, TRGP, FineTune
from cuber.errors import CuberError, CuberWarning
from cuber.subspace import Held

Loader = list[tuple[Tensor, Tensor]]
MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "plain": lambda parameters: SGD(parameters, lr=0.1),
    "momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: AdamW(parameters, lr=0.01),
}


def data(task: int) -> Loader:
    """Samples of six dimensions of 20, another six for each task but for three that all share."""
    generator = torch.Generator().manual_seed(task)
    mix = torch.randn(3, 20, generator=torch.Generator().manual_seed(9))
    mix = torch.cat([mix, torch.randn(3, 20, generator=generator)])
    x = torch.randn(64, 6, generator=generator) @ mix
    return [(x, torch.randint(4, (64,), generator=generator))]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))


def train(learner: GPM, optimizer: Optimizer, loader: Loader, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(learner.model(loader[0][0]), loader[0][1]).backward()
        optimizer.step()


def learn(learner: GPM, task: int, make: Callable[[Any], Optimizer], steps: int = 5) -> None:
    learner.begin_task(data(task), functional.cross_entropy)
    train(learner, learner.wrap(make(learner.parameters())), data(task), steps)
    learner.end_task(data(task))


def places(learner: GPM) -> dict[str, tuple[Tensor, Tensor]]:
    """What each layer's weight is along its pool, and the pool."""
    return {
        name: (layer.matrix().detach().double() @ learner.memory[name].basis.double(), learner.memory[name].basis)
        for name, layer in learner.layers.items()
    }


def drift(learner: GPM, places: dict[str, tuple[Tensor, Tensor]]) -> float:
    shares = []
    for name, (was, basis) in places.items():
        now = learner.layers[name].matrix().detach().double() @ basis.double()
        shares.append(float((now - was).norm() / was.norm()))
    return max(shares)


@pytest.mark.parametrize("threshold", [0.6, 0.97])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", [GPM, TRGP, CUBER])
@pytest.mark.parametrize("around", ["begin_task", "end_task", "both"])
def test_an_autocast_around_the_calls_changes_nothing(kind: type, make: str, threshold: float, around: str) -> None:
    learner = kind(network(), threshold=threshold, **({} if kind is GPM else {"eps1": 0.0}))
    if kind is CUBER:
        learner.eps2 = 2.0
    learn(learner, 0, MAKERS[make])
    for task in (1, 2):
        before, loader = places(learner), data(task)
        with torch.autocast("cpu", torch.bfloat16) if around != "end_task" else nullcontext():
            learner.begin_task(loader, functional.cross_entropy)
        optimizer = learner.wrap(MAKERS[make](learner.parameters()))
        train(learner, optimizer, loader, 10)
        with torch.autocast("cpu", torch.bfloat16) if around != "begin_task" else nullcontext():
            learner.end_task(loader)
        assert drift(learner, before) < 1e-6


def test_slow_decay_over_many_tasks_gets_nowhere() -> None:
    """Each task's drift is below what rounding could be; all together would not be."""
    learner = GPM(network())
    learn(learner, 0, MAKERS["plain"])
    before = places(learner)
    for task in range(1, 25):
        learn(learner, task, lambda parameters: SGD(parameters, lr=1e-4, weight_decay=4e-3), steps=10)
    assert drift(learner, before) < 2e-6  # decay alone would come to 1e-4


@pytest.mark.parametrize(("make", "put_back"), [("plain", 0), ("momentum", 0), ("AdamW", 10)])
def test_weights_are_put_back_only_where_steps_leave_the_way_of_the_gradients(make: str, put_back: int) -> None:
    learner = GPM(network())
    learn(learner, 0, MAKERS["plain"])
    learner.begin_task(data(1), functional.cross_entropy)
    optimizer = learner.wrap(MAKERS[make](learner.parameters()))
    with mock.patch.object(Held, "put_back", autospec=True, side_effect=Held.put_back) as called:
        train(learner, optimizer, data(1), 10)
        assert called.call_count == put_back * len(learner.layers)
        learner.end_epoch()
        assert called.call_count == (put_back + 1) * len(learner.layers)


def test_how_far_weights_were_moved_is_told_beside_their_size_before() -> None:
    learner = GPM(network())
    learn(learner, 0, MAKERS["plain"])
    learner.begin_task(data(1), functional.cross_entropy)
    learner.wrap(MAKERS["plain"](learner.parameters()))
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.zero_()
    with pytest.warns(CuberWarning) as told:
        learner.end_task(data(1))
    shares = [float(str(one.message).split("moved by ")[1].split("%")[0]) for one in told]
    assert len(shares) == 2
    assert all(10 < share <= 100 for share in shares)


@pytest.mark.parametrize("make", MAKERS)
def test_a_whole_weight_is_kept_only_where_it_is_put_back_often(make: str) -> None:
    learner = GPM(network())
    for task in range(2):
        learner.begin_task(data(task), functional.cross_entropy)
        train(learner, learner.wrap(MAKERS[make](learner.parameters())), data(task), 2)
        kept = [held.whole is not None for held in learner._held.values()]
        assert kept == [task > 0 and make != "plain"] * 2
        learner.end_task(data(task))


def test_between_tasks_nothing_has_moved_anywhere() -> None:
    learner = GPM(network())
    learn(learner, 0, MAKERS["plain"])
    with pytest.raises(CuberError, match="moved before begin_task"):
        learner.moved("0")


def test_a_task_that_did_not_begin_holds_nothing() -> None:
    learner = TRGP(network(), eps1=0.0)
    learn(learner, 0, MAKERS["plain"])
    with (
        mock.patch("cuber.methods.trgp.supports_of", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        learner.begin_task(data(1), functional.cross_entropy)
    assert learner.state_dict()["held"] == {}


def test_a_step_is_told_to_whom_it_was_given_by_hand() -> None:
    learner, seen = FineTune(network()), []
    learner.before_step = seen.append  # type: ignore[method-assign, assignment]
    learner.begin_task(data(0), functional.cross_entropy)
    optimizer = learner.wrap(SGD(learner.parameters(), lr=0.1))
    functional.cross_entropy(learner.model(data(0)[0][0]), data(0)[0][1]).backward()
    optimizer.step()
    assert seen == [optimizer]


@pytest.mark.parametrize("make", MAKERS)
def test_after_a_fall_a_resumed_learner_holds_what_the_first_one_does(make: str) -> None:
    """Weights may have moved before the fall: where they are held since then is part of the state."""
    settings: dict[str, Any] = {"eps1": 0.0, "eps2": -1.0, "lam": 0.1, "penalty": "norm", "threshold": 0.9}
    learner = CUBER(network(), **settings)
    for task in range(2):
        learn(learner, task, MAKERS["plain"])
    loader = data(2)
    learner.begin_task(loader, functional.cross_entropy)
    optimizer = learner.wrap(MAKERS[make](learner.parameters()))
    train(learner, optimizer, loader, 3)
    learner.eps2 = 2.0
    learner.end_epoch()
    assert any(regime.fell is not None for regime in learner.regimes[-1]["0"].values())
    train(learner, optimizer, loader, 3)
    twin = CUBER(network(), **settings)
    twin.load_state_dict(learner.state_dict())
    twin.model.load_state_dict(learner.model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CuberWarning)
        for one in (learner, twin):
            for parameter in one.model.parameters():
                parameter.data += 0.01
            one._settle()
    for one, other in zip(learner.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(one, other)
