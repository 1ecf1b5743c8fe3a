"""Networks in half and double precision, and mixed: protected as far as their own rounding lets them be."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from cuber import CUBER, GPM, TRGP, CuberWarning, SoftCUBER
from cuber.core.learner import Method
from cuber.layers import backends
from tests.loops import OPTIMIZERS, Watch, learn, loss_fn, sgd, train
from tests.models import CASES, Case


def three_tasks(learner: Method, case: Case, dtype: torch.dtype) -> None:
    for task in range(3):
        learn(learner, case.loader(task, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mlp", "cnn", "residual block"])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(GPM, {}), (CUBER, {"eps1": 0.0, "eps2": 1.1}), (CUBER, {"eps1": 0.0, "eps2": -1.0})],
    ids=["GPM", "CUBER in regime 2", "CUBER in regime 3"],
)
def test_a_network_of_another_precision_learns_three_tasks(
    kind: type, settings: dict[str, Any], name: str, dtype: torch.dtype
) -> None:
    case = CASES[name]
    learner = kind(case.model(dtype=dtype), **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CuberWarning)  # the next test's
        three_tasks(learner, case, dtype)
    assert all(parameter.dtype == dtype for parameter in learner.model.parameters())
    for pool in learner.memory.values():
        assert pool.basis.dtype == torch.promote_types(dtype, torch.float32)
        assert (pool.basis.T @ pool.basis - torch.eye(pool.size)).norm() < 1e-5


@pytest.mark.needs_dtype(torch.bfloat16)
@pytest.mark.parametrize("disturbed", [False, True])
def test_rounding_in_half_precision_is_not_reported_as_drift_and_real_drift_is(disturbed: bool) -> None:
    case = CASES["residual block"]
    learner = CUBER(case.model(dtype=torch.bfloat16), eps1=0.0, eps2=1.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CuberWarning)
        learn(learner, case.loader(0, dtype=torch.bfloat16))
        loader = case.loader(1, dtype=torch.bfloat16)
        learner.begin_task(loader, loss_fn)
        train(learner, learner.wrap(sgd(learner.parameters())), loader)
        if disturbed:
            with torch.no_grad():
                learner.model.conv2.weight.mul_(1.2)  # type: ignore[union-attr,operator]
        learner.end_task(loader)
    reported = [str(warning.message) for warning in caught if issubclass(warning.category, CuberWarning)]
    assert bool(reported) == disturbed, reported
    assert all("'conv2'" in message for message in reported)


def drift_in(dtype: torch.dtype) -> float:
    case = CASES["mlp"]
    learner = GPM(case.model(dtype=dtype), threshold=0.8)
    learn(learner, case.loader(0, samples=4, dtype=dtype))
    loader = case.loader(1, dtype=dtype)
    learner.begin_task(loader, loss_fn)
    watch = Watch.over(learner)
    train(learner, learner.wrap(torch.optim.Adam(learner.parameters(), lr=0.01)), loader, epochs=5)
    return max(watch.drift().values())


def test_in_double_precision_protected_directions_hold_to_double_precision() -> None:
    assert drift_in(torch.float64) < 1e-13


@pytest.mark.needs_dtype(torch.bfloat16)
def test_in_half_precision_they_hold_to_half_precision() -> None:
    assert drift_in(torch.bfloat16) < 1e-2


def test_a_model_may_change_its_precision_between_tasks() -> None:
    case = CASES["mlp"]
    learner = CUBER(case.model(), eps1=0.0, eps2=-1.0, threshold=0.8)
    learn(learner, case.loader(0))
    learn(learner, case.loader(1))
    learner.model.double()
    loader = case.loader(2, dtype=torch.float64)
    learn(learner, loader)
    for task in range(3):
        with torch.no_grad(), learner.as_task(task) as model:
            assert model(loader[0][0]).dtype == torch.float64


WIDENED: dict[str, Any] = {
    "GPM": lambda model, **options: GPM(model, threshold=0.8, **options),
    "TRGP": lambda model, **options: TRGP(model, threshold=0.8, eps1=0.0, **options),
    "CUBER in regime 2": lambda model, **options: CUBER(model, threshold=0.8, eps1=0.0, eps2=1.1, **options),
    "CUBER in regime 3": lambda model, **options: CUBER(model, threshold=0.8, eps1=0.0, eps2=-1.0, **options),
    "SoftCUBER": lambda model, **options: SoftCUBER(model, **options),
}


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("kind", WIDENED)
def test_a_model_that_was_made_wider_between_tasks_is_protected_by_both_back_ends(
    kind: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "WORTHWHILE", 0)  # take the shortcuts of large layers
    case = CASES["mlp"]
    learners = []
    for backend in ("fast", "plain"):
        learner = WIDENED[kind](case.model(), backend=backend)
        learn(learner, case.loader(0), OPTIMIZERS["AdamW"])
        learner.model.to(torch.float64)
        loader = case.loader(1, dtype=torch.float64)
        learner.begin_task(loader, loss_fn)
        watch = Watch.over(learner)
        train(learner, learner.wrap(OPTIMIZERS[optimizer](learner.parameters())), loader, epochs=2)
        if kind in ("GPM", "TRGP", "CUBER in regime 2"):
            watch.held()
        learner.end_task(loader)
        learners.append(learner)
    for one, other in zip(*(learner.model.parameters() for learner in learners), strict=True):
        assert one.dtype == torch.float64
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.needs_dtype(torch.bfloat16)
def test_mixed_precision_by_autocast_learns_and_protects() -> None:
    case = CASES["cnn"]
    learner = CUBER(case.model(), eps1=0.0, eps2=1.1, threshold=0.8)
    for task in range(3):
        loader = case.loader(task)
        learner.begin_task(loader, loss_fn)
        watch = Watch.over(learner)
        optimizer = learner.wrap(torch.optim.Adam(learner.parameters(), lr=0.01))
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_fn(learner.model(x), y)
            loss.backward()
            optimizer.step()
            watch.held()
        learner.end_epoch()
        learner.end_task(loader)
    x = case.inputs(0, 4)
    with torch.no_grad(), learner.as_task(2) as model:
        exact = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.allclose(model(x).float(), exact, atol=0.1)
