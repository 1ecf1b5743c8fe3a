"""Views inside views: each shows what it would show alone, and leaves what it found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuber import GPM
from tests.loops import learn
from tests.models import CASES

HEADS = CASES["many heads"]


def look_at_a_task(learner: Any) -> None:
    with learner.as_task(2):
        pass


VERBS: dict[str, Callable[[Any], object]] = {
    "as_task": look_at_a_task,
    "infer_task": lambda learner: learner.infer_task(HEADS.inputs(0, 4)),
    "predict": lambda learner: learner.predict(HEADS.inputs(0, 4)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_bare_weights_keep_their_head_after_a_view_of_a_task(verb: str) -> None:
    learner: Any = GPM(HEADS.model())
    for task in range(3):
        learn(learner, HEADS.loader(task))
    x = HEADS.inputs(1, 4)
    with torch.no_grad(), learner.as_task(1) as model, learner.as_task(None):
        before = model(x)
        VERBS[verb](learner)
        assert model.task == 1
        assert torch.equal(model(x), before)
    assert learner.model.task == 2
