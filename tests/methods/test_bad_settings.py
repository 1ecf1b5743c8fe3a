"""Settings that make no sense are answered with one sentence, before anything is touched."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from cuber import AGEM, CUBER, ER, EWC, GPM, TRGP, CuberError, FineTune
from cuber.core.settings import check_values, parse_settings, read_value, settings_of
from tests.loops import learn, loss_fn
from tests.models import CASES

CASE = CASES["mlp"]
BAD: list[tuple[type, dict[str, Any], str]] = [
    (CUBER, {"eps1": -0.1}, "eps1 must be a number of at least 0, not -0.1"),
    (CUBER, {"eps1": float("nan")}, "eps1 must be a number of at least 0, not nan"),
    (CUBER, {"eps1": "half"}, "eps1 must be a number of at least 0, not 'half'"),
    (CUBER, {"eps1": None}, "eps1 must be a number of at least 0, not None"),
    (CUBER, {"eps2": -1.5}, "eps2 must be a number of at least -1, not -1.5"),
    (CUBER, {"lam": -1}, "lam must be a number of at least 0, not -1"),
    (CUBER, {"lam": True}, "lam must be a number of at least 0, not True"),
    (CUBER, {"keep": 1.1}, "keep must be a number from 0 to 1, not 1.1"),
    (CUBER, {"penalty": "cubed"}, "penalty must be one of .*, not 'cubed'"),
    (CUBER, {"check": "never"}, "check must be one of epoch, step.*, not 'never'"),
    (TRGP, {"selected": -1}, "selected must be a whole number of at least 0, not -1"),
    (TRGP, {"selected": 1.5}, "selected must be a whole number of at least 0, not 1.5"),
    (GPM, {"threshold": 1.01}, "threshold must be a number from 0 to 1, not 1.01"),
    (GPM, {"threshold": [0.9, -0.1, 0.9]}, "threshold must be a number from 0 to 1, not -0.1"),
    (GPM, {"threshold": {"layers.0": 2}}, "threshold must be a number from 0 to 1, not 2"),
    (GPM, {"threshold_step": -0.1}, "threshold_step must be a number from 0 to 1, not -0.1"),
    (GPM, {"samples": 0}, "samples must be a whole number of at least 1, not 0"),
    (GPM, {"samples": 10.5}, "samples must be a whole number of at least 1, not 10.5"),
    (GPM, {"uncovered": "ignore"}, "uncovered must be one of freeze, train, error, not 'ignore'"),
    (FineTune, {"norm_statistics": "none"}, "norm_statistics must be one of task, batch, not 'none'"),
]


@pytest.mark.parametrize(("kind", "settings", "sentence"), BAD, ids=[f"{k.__name__} {s}" for k, s, _ in BAD])
def test_a_value_out_of_range_is_one_sentence_and_leaves_the_model_alone(
    kind: type, settings: dict[str, Any], sentence: str
) -> None:
    model = CASE.model()
    with pytest.raises(CuberError, match=rf"^{kind.__name__}: {sentence}$"):
        kind(model, **settings)
    assert not any("forward" in module.__dict__ for module in model.modules())
    learn(kind(model), CASE.loader(0))


def test_the_limits_themselves_are_allowed() -> None:
    low = {"eps1": 0, "eps2": -1, "lam": 0, "keep": 0, "threshold": 0, "selected": 0, "samples": 1, "threshold_step": 0}
    high = {"eps1": 2, "eps2": 2.0, "lam": 10, "keep": 1, "threshold": 1, "selected": 99, "threshold_step": 1}
    for values in (low, high):
        learner = CUBER(CASE.model(), **values)  # type: ignore[arg-type]
        assert {name: getattr(learner, name) for name in values} == values


@pytest.mark.parametrize("kind", [FineTune, EWC, AGEM, ER, GPM, TRGP, CUBER])
def test_every_default_fits_its_own_setting_and_shows_in_repr(kind: Any) -> None:
    text = repr(kind(CASE.model()))
    for name, (default, what) in settings_of(kind).items():
        what.check(name, default, default)
        assert f"{name}={default!r}" in text
        assert what.help


@pytest.mark.parametrize("setting", ["threshold", "samples"])
def test_a_list_or_mapping_gives_every_layer_its_own_value(setting: str) -> None:
    values: list[Any] = [0.5, 0.9, 0.999] if setting == "threshold" else [2, 3, 24]
    names = ["layers.0", "layers.1", "layers.2"]
    sizes = []
    for per_layer in (values, tuple(values), dict(zip(names, values, strict=True))):
        learner = GPM(CASE.model(), **{"threshold": 0.999, "threshold_step": 0.0} | {setting: per_layer})
        learn(learner, CASE.loader(0))
        sizes.append([learner.memory[name].size for name in names])
    assert sizes[0] == sizes[1] == sizes[2]
    assert sizes[0][0] < sizes[0][2] if setting == "threshold" else sizes[0][:2] == [2, 3]


@pytest.mark.parametrize("values", [[10, 10], [10] * 4, []], ids=["too few", "too many", "none"])
def test_samples_of_the_wrong_length_are_refused_when_the_task_begins(values: list[int]) -> None:
    learner = GPM(CASE.model(), samples=values)
    with pytest.raises(CuberError, match=rf"samples has {len(values)} values, but the model has 3 protected layers"):
        learner.begin_task(CASE.loader(0), loss_fn)
    learner.samples = 10
    learn(learner, CASE.loader(0))


@pytest.mark.parametrize("values", [[0.9, 0.9], {"layers.0": 0.9}], ids=["list", "mapping"])
def test_thresholds_that_lack_a_layer_are_refused_when_the_task_begins(values: Any) -> None:
    learner = GPM(CASE.model(), threshold=values)
    with pytest.raises(CuberError, match="threshold has"):
        learner.begin_task(CASE.loader(0), loss_fn)
    assert not any(pool.tasks for pool in learner.memory.values())


def test_a_name_that_is_no_layer_is_told_by_the_layer_that_is_missing() -> None:
    learner = GPM(CASE.model(), samples={"layers.0": 1, "c": 2})
    with pytest.raises(CuberError, match=r"no value for layer 'layers\.1' \(it names layers\.0, c\)"):
        learner.for_layer("samples", "layers.1")


def test_settings_are_read_from_text_and_unknown_ones_answered_with_the_nearest() -> None:
    texts = parse_settings(["eps1=0.4", "threshold=[0.9, 0.95]", "check=step", "selected=1"])
    values = {name: read_value(text) for name, text in texts.items()}
    assert values == {"eps1": 0.4, "threshold": [0.9, 0.95], "check": "step", "selected": 1}
    check_values(CUBER, values)
    with pytest.raises(CuberError, match=r"no setting of CUBER 'esp1'; did you mean 'eps1'"):
        check_values(CUBER, {"esp1": 0.4})
    with pytest.raises(CuberError, match="eps1 must be a number of at least 0, not -1"):
        check_values(CUBER, {"eps1": -1})


@pytest.mark.parametrize("text", ["eps1", "eps1=", "=1", ""])
def test_what_is_no_assignment(text: str) -> None:
    with pytest.raises(CuberError, match=f"--set takes name=value, not '{text}'"):
        parse_settings([text])


def test_two_values_for_one_setting() -> None:
    with pytest.raises(CuberError, match="--set has two values for eps1, '1' and '2': give it one"):
        parse_settings(["eps1=1", "eps1=2"])


def test_a_model_that_is_wrapped_for_something_else_is_still_a_model() -> None:
    learner = GPM(nn.Sequential(CASE.model()))
    learn(learner, CASE.loader(0))
    assert learner.tasks == 1
    assert all(pool.size for pool in learner.memory.values())


def test_what_is_no_module_is_refused_with_a_sentence() -> None:
    with pytest.raises(CuberError, match=r"nn\.Module"):
        GPM("resnet18")  # type: ignore[arg-type]
