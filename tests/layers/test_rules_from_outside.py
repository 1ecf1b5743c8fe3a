"""A rule that a user registers for a layer of their own, which has no attribute ``bias``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber.layers import RULES, Rule, register
from cuber.methods import METHODS
from tests.loops import OPTIMIZERS, learn, logits
from tests.models import CASES

DATA = CASES["mlp"]


class Product(nn.Module):
    """A matrix, and nothing else."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.mT


@pytest.fixture(params=[True, False], ids=["multiplies", "does not say so"], autouse=True)
def rule(request: Any) -> Iterator[None]:
    @register(Product)
    class ProductRule(Rule):
        multiplies = request.param

        @staticmethod
        def vectors(layer: nn.Module, x: Tensor) -> Tensor:
            return x.reshape(-1, x.shape[-1])

        @staticmethod
        def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            assert bias is None
            return x @ weight.mT

    yield
    del RULES[Product]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.joint])
def test_every_method_learns_and_exports_such_layers(name: str) -> None:
    settings = {"eps1": 0.0} if name in ("trgp", "cuber", "soft-cuber") else {}
    torch.manual_seed(0)
    learner: Any = METHODS[name](nn.Sequential(Product(8, 6), nn.ReLU(), Product(6, 3)), **settings)
    for task in range(3):
        learn(learner, DATA.loader(task), OPTIMIZERS["SGD" if task % 2 else "AdamW"])
    x = DATA.inputs(0, 5)
    for task in range(3):
        assert torch.allclose(learner.export(task)(x), logits(learner, task, x), atol=1e-6)
    assert not getattr(learner, "uncovered_parameters", {})
