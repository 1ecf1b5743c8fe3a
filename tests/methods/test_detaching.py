"""``detach`` warns of what tasks need and the model does not have, once, and only then."""

from __future__ import annotations

import warnings

import pytest
import torch

from cuber import CuberWarning
from cuber.methods import METHODS
from tests.loops import logits, loss_fn
from tests.methods.test_export import assert_answers, assert_plain, learned
from tests.models import CASES

LOST = r"these are lost: {}\. To keep a task, call learner\.export\(task\) before detach\(\)"


@pytest.mark.parametrize(
    ("method", "name", "lost"),
    [
        ("trgp", "mlp", "scalings of tasks 1, 2"),
        ("hat", "mlp", "gates of tasks 0, 1, 2"),
        ("finetune", "residual block", "normalization of tasks 0, 1"),
        ("trgp", "residual block", "scalings of tasks 1, 2; normalization of tasks 0, 1"),
    ],
)
def test_one_warning_names_what_is_lost(method: str, name: str, lost: str) -> None:
    learner = learned(method, CASES[name])
    bare = logits(learner, None, x := CASES[name].inputs(7, 9))
    with pytest.warns(CuberWarning, match=LOST.format(lost)) as caught:
        learner.detach()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    learner.detach()
    assert torch.equal(logits_of(learner.model, x), bare)


def logits_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(x)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["mlp", "many heads", "residual block"])
def test_there_is_none_where_the_model_has_all_that_one_task_needs(method: str, name: str) -> None:
    learner = learned(method, CASES[name], tasks=1)
    if method == "hat":
        learner.export(0)
    before = logits(learner, 0, x := CASES[name].inputs(7, 9)) if method != "hat" else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.detach()
    assert before is None or torch.equal(logits_of(learner.model, x), before)


def test_there_is_none_for_tasks_that_were_exported_with_the_weights_of_now() -> None:
    case = CASES["mlp"]
    learner = learned("trgp", case, tasks=2)
    exported = learner.export(1)
    assert_answers(exported, learner, 1, x := case.inputs(7, 9))
    before = logits(learner, 1, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.detach()
    assert torch.allclose(logits_of(exported, x), before, atol=1e-6)


def test_an_export_before_the_last_task_is_of_older_weights() -> None:
    case = CASES["mlp"]
    learner = learned("trgp", case, tasks=2)
    learner.export(1)
    learner.begin_task(case.loader(2), loss_fn)
    learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
    learner.end_task(case.loader(2))
    with pytest.warns(CuberWarning, match=LOST.format("scalings of tasks 1, 2")):
        learner.detach()


def test_a_warning_that_is_an_error_comes_after_the_model_is_free() -> None:
    learner = learned("hat", CASES["mlp"], tasks=1)
    with pytest.raises(CuberWarning, match="gates of task 0"):  # pyproject.toml makes it an error
        learner.detach()
    assert_plain(learner.model)
    METHODS["hat"](learner.model)


def test_the_task_being_learned_is_named_too() -> None:
    learner = learned("trgp", CASES["mlp"], tasks=1)
    learner.begin_task(CASES["mlp"].loader(1), loss_fn)
    with pytest.warns(CuberWarning, match=LOST.format("scalings of task 1")):
        learner.detach()
    assert learner.is_detached
