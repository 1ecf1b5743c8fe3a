"""Weights that are parametrized, or no longer, while a learner is at work; and torch's cache of computed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from cuber import CUBER, EWC, GPM, HAT, OWM, TRGP, CuberError, SoftCUBER
from tests.loops import learn, loss_fn, same_bits, sgd

methods = pytest.mark.parametrize("method", [GPM, TRGP, CUBER, SoftCUBER, OWM, HAT])


def network(*, normed: bool) -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Linear(8, 6)
    return nn.Sequential(parametrizations.weight_norm(first) if normed else first, nn.Tanh(), nn.Linear(6, 3))


def loader(task: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    x, y = torch.randn(16, 8, generator=generator), torch.randint(3, (16,), generator=generator)
    return list(zip(x.split(8), y.split(8), strict=True))


WAYS: dict[str, Callable[[nn.Module], object]] = {
    "weight norm": parametrizations.weight_norm,
    "old weight norm": nn.utils.weight_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("tasks", [0, 1])
@methods
def test_a_weight_that_is_parametrized_after_the_learner_was_made_is_refused(method: Any, tasks: int, way: Any) -> None:
    learner = method(network(normed=False))
    for task in range(tasks):
        learn(learner, loader(task))
    way(learner.model[0])
    with pytest.raises(CuberError, match="weight of layer '0' was parametrized after the learner was made: parametriz"):
        learner.begin_task(loader(tasks), loss_fn)


@pytest.mark.parametrize("tasks", [0, 1])
@methods
def test_a_weight_that_is_not_parametrized_any_more_is_refused(method: Any, tasks: int) -> None:
    learner = method(network(normed=True))
    for task in range(tasks):
        learn(learner, loader(task))
    parametrize.remove_parametrizations(learner.model[0], "weight")
    with pytest.raises(CuberError, match="weight of layer '0' was parametrized when the learner was made and is not"):
        learner.begin_task(loader(tasks), loss_fn)


@pytest.mark.parametrize("method", [GPM, TRGP, CUBER, SoftCUBER, OWM, HAT, EWC])
def test_steps_inside_torch_s_cache_are_those_without_it(method: Any) -> None:
    learners = []
    for is_cached in (False, True):
        learner = method(network(normed=True))
        for task in range(2):
            learner.begin_task(loader(task), loss_fn)
            optimizer = learner.wrap(sgd(learner.parameters()))
            for x, y in loader(task) * 3:
                with parametrize.cached() if is_cached else torch.enable_grad():
                    optimizer.zero_grad()
                    loss_fn(learner.model(x), y).backward()
                    optimizer.step()
            learner.end_epoch()
            learner.end_task(loader(task))
        learners.append(learner)
    assert same_bits(learners[0].model, learners[1].model)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_an_old_hook_that_cannot_be_copied_is_refused_with_the_remedy() -> None:
    model = network(normed=False)
    nn.utils.weight_norm(model[2])
    learner = GPM(model)
    learner.begin_task(loader(0), loss_fn)
    learner.model(loader(0)[0][0])
    with pytest.raises(CuberError, match=r"^export\(0\) copies the model, .*; use torch\.nn\.utils\.parametrizations"):
        learner.export(0)
