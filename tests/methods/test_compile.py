"""A compiled model learns and computes what the model itself does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, CuberError
from tests.loops import detach, learn, loss_fn, scaled, scalings
from tests.models import CASES


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize(("name", "backend"), [("mlp", "aot_eager"), ("residual block", "eager")])
def test_a_compiled_model_gives_the_same_outputs_as_every_task(name: str, backend: str) -> None:
    """Whether it was compiled before the learner was made or after."""
    case = CASES[name]
    model = case.model()
    before: Any = torch.compile(model, backend=backend)
    learner = CUBER(before, eps1=0.0)
    assert learner.model is model
    for task in range(2):
        learn(learner, case.loader(task, samples=8))
    model.eval()
    after: Any = torch.compile(model, backend=backend)
    outputs = []
    for task, samples in ((0, 3), (1, 3), (None, 3), (1, 30)):
        x = case.inputs(0, samples)
        with torch.no_grad(), learner.as_task(task):
            outputs.append(model(x))
            for compiled in (before, after):
                assert torch.allclose(compiled(x), outputs[-1], atol=1e-6)
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-4), "both tasks give the same outputs"
    detach(learner)
    assert torch.allclose(after(x), model(x), atol=1e-6)


def test_training_a_compiled_model_gives_the_same_weights() -> None:
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


class Reader(nn.Module):
    """Words, and a layer on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words: Any = nn.Embedding(12, 6)
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(self.words(x).mean(1)).relu())


def compile_words(model: Reader) -> None:
    model.words = torch.compile(model.words, backend="eager")


@pytest.mark.parametrize(
    "compile_it",
    [lambda model: model.compile(backend="eager"), lambda model: model.words.compile(backend="eager"), compile_words],
    ids=["the model in place", "its embedding in place", "an embedding in a wrapper"],
)
def test_rows_of_a_compiled_embedding_are_seen(compile_it: Any) -> None:
    def learned(compile_it: Any) -> CUBER:
        torch.manual_seed(0)
        model = Reader()
        compile_it(model)
        learner = CUBER(model, eps1=0.0)
        for task in range(2):
            x = 3 * task + torch.arange(24).view(6, 4) % 5
            learn(learner, [(x, torch.arange(6) % 3)])
        return learner

    plain, compiled = learned(lambda model: None), learned(compile_it)
    assert [rows.tolist() for rows in compiled.rows.values()] == [[True] * 8 + [False] * 4]
    for one, other in zip(compiled.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_model_and_its_compiled_form_have_one_learner() -> None:
    model = CASES["mlp"].model()
    learner = CUBER(torch.compile(model, backend="eager"))  # type: ignore[arg-type]
    with pytest.raises(CuberError, match="has a learner already"):
        CUBER(model)
    assert learner.model is model
