"""A scaling that is learned by its supports is the scaling that is learned as a whole, also in regime 3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cuber import CUBER, TRGP
from cuber.core import pooled
from tests.loops import scaled, scalings


def learned(kind: type[TRGP], **settings: Any) -> TRGP:
    """Learn three tasks with few outputs and many columns; in the third, only columns of the second may move."""
    torch.manual_seed(2)
    learner = kind(nn.Linear(40, 3, bias=False, dtype=torch.float64), threshold=0.99, eps1=0.0, **settings)
    shared = torch.randn(30, 40, dtype=torch.float64)
    for directions in (26, 30, 30):
        inputs = torch.randn(60, directions, dtype=torch.float64) @ shared[:directions]
        loader = [(inputs, torch.randint(3, (60,)))]
        learner.begin_task(loader, nn.functional.cross_entropy)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.01, momentum=0.5))
        for x, y in loader * 15:
            optimizer.zero_grad()
            nn.functional.cross_entropy(learner.model(x), y).backward()
            optimizer.step()
        learner.end_epoch()
        learner.end_task(loader)
    return learner


@pytest.mark.parametrize(
    ("kind", "settings"), [(TRGP, {}), (CUBER, {"eps2": -1.0, "lam": 0.1, "penalty": "squared", "selected": 1})]
)
def test_learning_by_supports_loses_nothing(
    kind: Any, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = learned(kind, **settings)
    monkeypatch.setattr(pooled, "supports_of", lambda *_: [])
    whole = learned(kind, **settings)
    assert any(scaling.supports for task in range(ours.tasks) for scaling in scalings(ours, task).values())
    assert torch.allclose(ours.model.weight, whole.model.weight, atol=1e-9)  # type: ignore[arg-type]
    for task, by_layer in enumerate(scalings(ours, task) for task in range(ours.tasks)):
        for name in by_layer:
            assert torch.allclose(scaled(ours, task, name), scaled(whole, task, name), atol=1e-9)
