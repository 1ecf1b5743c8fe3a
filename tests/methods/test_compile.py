"""torch.compile sees what the learner does: the same answers, as every task, compiled before or after."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuber import CUBER, CuberError
from tests.loops import learn, loss_fn, scaled, scalings
from tests.models import CASES


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "when", "backend"),
    [("mlp", "before", "eager"), ("mlp", "after", "aot_eager"), ("residual block", "after", "eager")],
)
def test_a_compiled_model_answers_as_the_plain_one_does(name: str, when: str, backend: str) -> None:
    case = CASES[name]
    model = case.model()
    before: Any = torch.compile(model, backend=backend)
    learner = CUBER(before if when == "before" else model, eps1=0.0)
    assert learner.model is model
    for task in range(2):
        learn(learner, case.loader(task))
    model.eval()
    compiled: Any = before if when == "before" else torch.compile(model, backend=backend)
    answers = []
    for task, samples in ((0, 3), (1, 3), (None, 3), (1, 30)):
        x = case.inputs(0, samples)
        with torch.no_grad(), learner.as_task(task):
            answers.append(compiled(x))
            assert torch.allclose(answers[-1], model(x), atol=1e-6)
    assert not torch.allclose(answers[0], answers[1], atol=1e-4), "the tasks answer alike: nothing was shown"
    learner.detach()
    assert torch.allclose(compiled(x), model(x), atol=1e-6)


def test_training_through_the_compiled_model_goes_the_same_way() -> None:
    case = CASES["mlp without bias"]
    learners = []
    for compile_it in (True, False):
        learner = CUBER(case.model(), eps1=0.0, eps2=-1.0)
        learn(learner, case.loader(0))
        answer: Any = torch.compile(learner.model, backend="aot_eager") if compile_it else learner.model
        learner.begin_task(case.loader(1), loss_fn)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        for x, y in case.loader(1):
            optimizer.zero_grad()
            loss_fn(answer(x), y).backward()
            optimizer.step()
        learner.end_task(case.loader(1))
        learners.append(learner)
    for one, other in zip(learners[0].model.parameters(), learners[1].model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    for name in scalings(learners[0], 1):
        one, other = (scaled(learner, 1, name) for learner in learners)
        assert one.any()
        assert torch.allclose(one, other, atol=1e-6)


def test_a_compiled_model_and_the_plain_one_are_one_model_with_one_learner() -> None:
    model = CASES["mlp"].model()
    learner = CUBER(torch.compile(model, backend="eager"))  # type: ignore[arg-type]
    with pytest.raises(CuberError, match="has a learner already"):
        CUBER(model)
    assert learner.model is model
