"""Linear layers, over any leading dimensions: every position of a sequence is an input vector."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from cuber.layers.rule import Rule, register


@register(nn.Linear)
class LinearRule(Rule):
    multiplies = True

    @staticmethod
    def vectors(layer: nn.Module, x: Tensor) -> Tensor:
        return x.reshape(-1, x.shape[-1])

    @staticmethod
    def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)
