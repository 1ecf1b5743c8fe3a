"""States, steps and keywords that do not belong where they are used are worth a sentence."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuber
from cuber import AGEM, CUBER, ER, EWC, GPM, HAT, OWM, TRGP, CuberError, CuberWarning, FineTune, Method
from cuber.core.settings import setting
from tests.loops import learn, loss_fn, sgd, train
from tests.methods.test_resume import through_a_file
from tests.models import CASES

DATA = CASES["mlp"]
NOT_ITS_WEIGHTS = (
    r"does not have the weights that belong to the loaded state \('layers\.0\.weight' differs, and 5 more\)"
)
METHODS = [FineTune, AGEM, ER, EWC, GPM, TRGP, CUBER, OWM, HAT]


def learned(kind: Any = GPM, model: nn.Module | None = None, **settings: Any) -> Any:
    learner = kind(DATA.model() if model is None else model, **settings)
    learn(learner, DATA.loader(0))
    return learner


def silent(act: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        act()


def show(learner: Method) -> None:
    with learner.as_task(0):
        pass


@pytest.mark.parametrize("act", ["begin", "show", "resume"])
def test_a_state_without_the_models_weights_is_noticed_once_when_it_is_used(act: str) -> None:
    learner = learned()
    if act == "resume":
        learner.begin_task(DATA.loader(1), loss_fn)
    twin = GPM(DATA.model())
    silent(lambda: twin.load_state_dict(through_a_file(learner.state_dict())))
    use: dict[str, Callable[[], object]] = {
        "begin": lambda: twin.begin_task(DATA.loader(1), loss_fn),
        "show": lambda: show(twin),
        "resume": lambda: twin.resume_task(loss_fn),
    }
    with pytest.warns(CuberWarning, match=NOT_ITS_WEIGHTS):
        use[act]()
    silent(lambda: show(twin))


@pytest.mark.parametrize("weights_first", [True, False])
@pytest.mark.parametrize("name", ["mlp", "residual block", "many heads", "transformer"])
def test_with_its_weights_loaded_before_or_after_nothing_is_said(name: str, weights_first: bool) -> None:
    case = CASES[name]
    learner = GPM(case.model())
    for task in range(2):
        learn(learner, case.loader(task))
    with learner.as_task(0):  # another view of the same weights
        weights = through_a_file(learner.model.state_dict())
    state = through_a_file(learner.state_dict())
    twin = GPM(case.model(seed=5))
    loads = [lambda: twin.model.load_state_dict(weights), lambda: twin.load_state_dict(state)]
    for load in loads if weights_first else loads[::-1]:
        silent(load)
    silent(lambda: show(twin))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_weights_in_another_precision_are_the_same_weights(dtype: torch.dtype) -> None:
    learner = learned(FineTune)
    twin = FineTune(DATA.model(seed=5).to(dtype))
    twin.model.load_state_dict(learner.model.state_dict())
    twin.load_state_dict(learner.state_dict())
    silent(lambda: show(twin))
    with torch.no_grad():
        twin.model.layers[1].weight.mul_(1.1)  # type: ignore[union-attr, index]
    twin.load_state_dict(learner.state_dict())
    with pytest.warns(CuberWarning, match=r"'layers\.1\.weight' differs\)"):
        show(twin)


def test_a_state_of_nothing_learned_belongs_to_any_weights() -> None:
    twin = GPM(DATA.model(seed=5))
    twin.load_state_dict(GPM(DATA.model()).state_dict())
    silent(lambda: twin.begin_task(DATA.loader(0), loss_fn))


def test_a_state_in_other_settings_is_noticed_with_both_values() -> None:
    learner = learned(CUBER, eps1=0.4, threshold=(0.9, 0.8, 0.7))
    state = through_a_file(learner.state_dict())
    learner.detach()
    twin = CUBER(learner.model, lam=2.0)
    with pytest.warns(CuberWarning) as caught:
        twin.load_state_dict(state)
    (warning,) = caught
    for change in ("eps1=0.4 (here 0.5)", "threshold=[0.9, 0.8, 0.7] (here 0.97)", "lam=3.0 (here 2.0)"):
        assert change in str(warning.message)
    assert "eps2" not in str(warning.message)


def test_equal_settings_of_other_types_and_states_without_settings_are_fine() -> None:
    learner = learned(CUBER, eps1=np.float64(0.5), selected=np.int64(1), threshold=(0.9, 0.8, 0.7))
    state = through_a_file(learner.state_dict())
    learner.detach()
    twin = CUBER(learner.model, eps1=0.5, selected=1, threshold=[0.9, 0.8, 0.7])
    silent(lambda: twin.load_state_dict(state))
    twin.detach()
    other = CUBER(learner.model)
    silent(lambda: other.load_state_dict({key: state[key] for key in state if key not in ("settings", "weights")}))


@pytest.mark.parametrize("kind", METHODS)
def test_a_step_inside_as_task_is_noticed_once(kind: Any) -> None:
    learner = learned(kind)
    loader = DATA.loader(1)
    learner.begin_task(loader, loss_fn)
    optimizer = learner.wrap(sgd(learner.parameters()))
    silent(lambda: train(learner, optimizer, loader))
    with learner.as_task(1), pytest.warns(CuberWarning, match="a step inside as_task, where the model shows task 1"):
        train(learner, optimizer, loader[:1], end_epochs=False)
    with learner.as_task(0):
        silent(lambda: train(learner, optimizer, loader, end_epochs=False))


@pytest.mark.parametrize("kind", METHODS)
def test_an_epoch_without_a_wrapped_optimizer_is_refused_when_it_ends(kind: Any) -> None:
    learner = kind(DATA.model())
    learner.begin_task(DATA.loader(0), loss_fn)
    with pytest.raises(CuberError, match="end_epoch: no optimizer was wrapped"):
        train(learner, sgd(learner.parameters()), DATA.loader(0))
    assert learner.epoch == 0
    train(learner, learner.wrap(sgd(learner.parameters())), DATA.loader(0))
    assert learner.epoch == 1


def test_a_misspelt_keyword_suggests_the_right_one_and_leaves_the_model_alone() -> None:
    model: Any = DATA.model()
    with pytest.raises(CuberError, match=r"no setting of GPM 'treshold'; did you mean 'threshold'\?"):
        GPM(model, treshold=0.9)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no setting of CUBER 'model_'"):
        CUBER(model, model_=1)  # type: ignore[call-arg]
    assert GPM(model=model, threshold=0.9).threshold == 0.9


def test_a_method_of_a_users_own_may_take_any_keyword() -> None:
    class Named(FineTune):
        def __init__(self, model: nn.Module, name: str, **rest: Any) -> None:
            super().__init__(model)
            self.name, self.rest = name, rest

    assert Named(DATA.model(), name="a", other=1).rest == {"other": 1}

    class Undecorated(FineTune):
        strength: float = setting(1.0, "not a field yet")

    with pytest.raises(CuberError, match="no setting of Undecorated 'strength'"):
        Undecorated(DATA.model(), strength=2.0)  # type: ignore[call-arg]


def test_dir_shows_public_names_only() -> None:
    assert dir(cuber) == sorted(cuber.__all__)
