"""The fast back end learns what the plain one learns: every model, every optimizer, every method."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import pytest
import torch

from cuber import CUBER, GPM, TRGP
from cuber.layers import backends
from tests.loops import OPTIMIZERS, learn, logits, weights
from tests.models import CASES, Case, cases

IMPROVING = {"eps1": 0.0, "eps2": -1.0, "lam": 0.1}
METHODS: dict[str, tuple[type, dict[str, Any]]] = {
    "GPM": (GPM, {}),
    "TRGP": (TRGP, {"eps1": 0.3}),
    "CUBER": (CUBER, {"eps1": 0.3, "eps2": -0.02, "selected": 1, "lam": 0.1, "penalty": "energy"}),
    "CUBER, two tasks improve": (CUBER, {**IMPROVING, "penalty": "norm"}),
    "CUBER, checked at every step": (CUBER, {**IMPROVING, "eps2": -0.1, "penalty": "squared", "check": "step"}),
}


@pytest.fixture(autouse=True)
def _shortcuts_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "WORTHWHILE", 0)


def learner_of(case: Case, method: str, backend: str) -> Any:
    kind, settings = METHODS[method]
    return kind(case.model(dtype=torch.float64), threshold=0.8, backend=backend, **settings)


def learn_task(learner: Any, case: Case, task: int, optimizer: str = "SGD") -> None:
    """Two epochs of two steps, so that steps follow what the end of an epoch changes."""
    torch.manual_seed(task)  # for dropout
    learn(learner, case.loader(task, 8, 4, torch.float64), OPTIMIZERS[optimizer], epochs=2)


def decisions(learner: Any) -> list[Any]:
    return [
        (name, old, regime.number, regime.demoted_at)
        for by_layer in learner.regimes
        for name, by_task in by_layer.items()
        for old, regime in by_task.items()
    ]


def assert_same(fast: Any, plain: Any, case: Case) -> None:
    """Fail unless regimes, weights, pools and outputs for every task are the same."""
    assert decisions(fast) == decisions(plain)
    found = weights(fast)
    for name, weight in weights(plain).items():
        assert torch.allclose(found[name], weight, rtol=1e-6, atol=1e-8), name
        assert torch.equal(fast.memory[name].owners, plain.memory[name].owners)
    x = case.inputs(300, 6, torch.float64)
    for task in range(plain.tasks):
        assert torch.allclose(logits(fast, task, x), logits(plain, task, x), rtol=1e-5, atol=1e-7)


def load(learner: Any, weights: dict[str, Any], state: dict[str, Any]) -> None:
    learner.model.load_state_dict(weights)
    learner.load_state_dict(state)


@functools.cache
def after_two_tasks(case: Case, method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Learn two tasks by SGD with both back ends, compare them, and return the weights and the learner's state."""
    plain, fast = (learner_of(case, method, backend) for backend in ("plain", "fast"))
    for task in range(2):
        for learner in (plain, fast):
            learn_task(learner, case, task)
        assert_same(fast, plain, case)
        # Bases may differ by a sign: begin each task with the same.
        load(fast, plain.model.state_dict(), plain.state_dict())
    return copy.deepcopy(plain.model.state_dict()), plain.state_dict()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", cases())
def test_both_back_ends_learn_the_same(case: Case, method: str, optimizer: str) -> None:
    """A third task, from the same state; the first two are compared in ``after_two_tasks``."""
    plain, fast = (learner_of(case, method, backend) for backend in ("plain", "fast"))
    for learner in (plain, fast):
        load(learner, *after_two_tasks(case, method))
        learn_task(learner, case, 2, optimizer)
    assert_same(fast, plain, case)


def test_the_comparison_compares_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are projected by their factors, displacements cached, old tasks in all regimes, some demoted."""
    taken: set[str] = set()
    factors, agrees = backends.FastBackend._matching_factors, backends.FastBackend._agrees

    def noted_factors(self: Any) -> Any:
        found = factors(self)
        taken.update({"factors"} if found[0] is not None else ())
        return found

    def noted_agreement(self: Any, displacement: torch.Tensor) -> bool:
        agreed = agrees(self, displacement)
        taken.update({"displacement"} if agreed else ())
        return agreed

    monkeypatch.setattr(backends.FastBackend, "_matching_factors", noted_factors)
    monkeypatch.setattr(backends.FastBackend, "_agrees", noted_agreement)
    made = []
    for case, method in itertools.product(("mlp", "cnn"), METHODS):
        learner = learner_of(CASES[case], method, "fast")
        load(learner, *after_two_tasks(CASES[case], method))
        learn_task(learner, CASES[case], 2)
        made += decisions(learner)
    assert taken == {"factors", "displacement"}
    assert {number for _, _, number, _ in made} == {1, 2, 3}
    assert any(demoted_at is not None for *_, demoted_at in made)
