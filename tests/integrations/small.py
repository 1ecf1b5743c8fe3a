"""Small learners for the tests of frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cuber import CUBER, GPM, TRGP, Method
from tests.loops import logits

METHODS: dict[str, Callable[[nn.Module], Any]] = {
    "GPM": lambda model: GPM(model, threshold=0.8),
    "TRGP": lambda model: TRGP(model, threshold=0.8, eps1=0.1),
    "CUBER": lambda model: CUBER(model, threshold=0.8, eps1=0.1, eps2=-1.0, lam=0.1),
}
methods = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)


def mlp(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))


def same_answers(one: Method, other: Method) -> bool:
    """Whether two learners answer with the same bits for every task; weights alone would not show scalings."""
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(7))
    return one.tasks == other.tasks and all(
        torch.equal(logits(one, task, x), logits(other, task, x)) for task in range(one.tasks)
    )
