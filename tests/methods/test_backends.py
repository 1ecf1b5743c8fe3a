"""The fast back end takes the way of the plain one: every model, every optimizer, every method."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuber import CUBER, GPM, TRGP
from cuber.layers import fast_backend
from tests.loops import OPTIMIZERS, learn, logits, weights
from tests.models import CASES, Case, cases

IMPROVING = {"eps1": 0.0, "eps2": -1.0, "lam": 0.1}
METHODS: dict[str, tuple[type, dict[str, Any]]] = {
    "GPM": (GPM, {}),
    "TRGP": (TRGP, {"eps1": 0.3}),
    "CUBER": (CUBER, {"eps1": 0.3, "eps2": -0.05, "lam": 0.1, "penalty": "energy"}),
    "CUBER, two tasks improve": (CUBER, {**IMPROVING, "penalty": "norm"}),
    "CUBER, checked at every step": (CUBER, {**IMPROVING, "eps2": -0.2, "penalty": "squared", "check": "step"}),
}


@pytest.fixture(autouse=True)
def _shortcuts_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_backend, "WORTHWHILE", 0)


def learner_of(case: Case, method: str, backend: str) -> Any:
    kind, settings = METHODS[method]
    return kind(case.model(dtype=torch.float64), threshold=0.8, backend=backend, **settings)


def learn_task(learner: Any, case: Case, task: int, optimizer: str) -> None:
    torch.manual_seed(task)  # for dropout
    learn(learner, case.loader(task, 16, 4, torch.float64), OPTIMIZERS[optimizer])


def decisions(learner: Any) -> list[Any]:
    return [
        (name, old, regime.number, regime.demoted_at)
        for by_layer in learner.regimes
        for name, by_task in by_layer.items()
        for old, regime in by_task.items()
    ]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("case", cases())
def test_both_take_the_same_way(case: Case, optimizer: str, method: str) -> None:
    plain, fast = (learner_of(case, method, backend) for backend in ("plain", "fast"))
    for task in range(3):
        for learner in (plain, fast):
            learn_task(learner, case, task, optimizer)
        assert decisions(fast) == decisions(plain)
        for name, weight in weights(plain).items():
            assert torch.allclose(weights(fast)[name], weight, rtol=1e-6, atol=1e-8), name
            assert torch.equal(fast.memory[name].owners, plain.memory[name].owners)
        x = case.inputs(300, 6, torch.float64)
        for old in range(task + 1):
            assert torch.allclose(logits(fast, old, x), logits(plain, old, x), rtol=1e-5, atol=1e-7)
        # Bases may differ by a sign, and Adam's steps then by rounding: begin each task with the same.
        fast.load_state_dict(plain.state_dict())
        fast.model.load_state_dict(plain.model.state_dict())


def test_the_comparison_compares_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are projected by their factors, displacements cached, and old tasks in all three regimes."""
    taken: set[str] = set()
    factors, agrees = fast_backend.FastBackend._matching_factors, fast_backend.FastBackend._agrees

    def noted_factors(self: Any) -> Any:
        found = factors(self)
        taken.update({"factors"} if found[0] is not None else ())
        return found

    def noted_agreement(self: Any, displacement: torch.Tensor) -> bool:
        agreed = agrees(self, displacement)
        taken.update({"displacement"} if agreed else ())
        return agreed

    monkeypatch.setattr(fast_backend.FastBackend, "_matching_factors", noted_factors)
    monkeypatch.setattr(fast_backend.FastBackend, "_agrees", noted_agreement)
    learner = learner_of(CASES["mlp"], "CUBER", "fast")
    for task in range(4):
        learn_task(learner, CASES["mlp"], task, "SGD")
    assert taken == {"factors", "displacement"}
    assert {number for _, _, number, _ in decisions(learner)} == {1, 2, 3}
