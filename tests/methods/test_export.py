"""What ``export`` returns computes what the model does inside ``as_task``, and nothing of the learner is in it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, GPM, HAT, TRGP, CuberError, FineTune, Method, MultiHead, Multitask
from cuber.methods import METHODS
from cuber.networks import MLP
from tests.loops import learn, logits, loss_fn, same_bits, sgd, train
from tests.models import CASES, Case, cases

SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["cuber", "trgp", "soft-cuber"], {"eps1": 0.0}),
    "hat": {"smax": 3.0},  # gates that are neither open nor closed
}


def three_tasks(method: str, case: Case, **settings: Any) -> Any:
    torch.manual_seed(0)
    learner = METHODS[method](case.model(), **SETTINGS.get(method, {}), **settings)
    loaders = [case.loader(task, samples=16) for task in range(3)]
    if not isinstance(learner, Multitask):
        for loader in loaders:
            learn(learner, loader)
        return learner
    mixed = [(x, y, torch.full_like(y, task)) for task, loader in enumerate(loaders) for x, y in loader]
    learner.begin_task(mixed, loss_fn)
    optimizer = learner.wrap(sgd(learner.parameters()))
    for batch in mixed:
        optimizer.zero_grad()
        learner.loss(batch).backward()
        optimizer.step()
    learner.end_task(mixed)
    return learner


def foreign(model: nn.Module) -> list[str]:
    """What of a model is not the user's or torch's: classes of cuber, forward passes and attributes on modules."""
    found = [kind for kind in ("cuber.layers", "cuber.core", "cuber.methods", "cuber.subspace", "_frozen_by_cuber")]
    pickled = pickle.dumps(model)
    return [name for name in [*found, "MultiHead"] if name.encode() in pickled]


@torch.no_grad()
def assert_equal_outputs(learner: Method, task: int, x: Tensor) -> nn.Module:
    exported = learner.export(task)
    assert not exported.training
    assert torch.allclose(exported(x), logits(learner, task, x), atol=1e-6, rtol=1e-6)
    assert foreign(exported) == []
    return exported


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", cases())
def test_the_outputs_are_those_of_the_task_for_every_method_and_model(case: Case, method: str) -> None:
    learner = three_tasks(method, case)
    x = case.inputs(7, 9)
    before, state = copy.deepcopy(learner.model.state_dict()), learner.state_dict()
    answers = [logits(learner, task, x) for task in (None, 0, 1, 2)]
    for task in range(3):
        exported = assert_equal_outputs(learner, task, x)
        assert all(parameter.requires_grad and parameter.is_leaf for parameter in exported.parameters())
    assert all(torch.equal(logits(learner, task, x), answer) for task, answer in zip((None, 0, 1, 2), answers))
