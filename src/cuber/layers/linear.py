"""Linear layers: the input vectors are the positions of the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber.layers.rule import Rule, register


@register(nn.Linear)
class LinearRule(Rule):
    """Over any leading dimensions: every position of a sequence is an input vector."""

    multiplies = True

    @staticmethod
    def vectors(layer: nn.Module, x: Tensor) -> Tensor:
        if x.is_nested:  # sequences of different lengths, as torch's transformers pack them
            return torch.cat([sequence.flatten(0, -2) for sequence in x.unbind()])
        return x.reshape(-1, x.shape[-1])

    @staticmethod
    def outputs(layer: nn.Module, y: Tensor) -> Tensor | None:
        return None if y.is_nested or y.dim() < 2 else y.reshape(-1, y.shape[-1])

    @staticmethod
    def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)


@register("transformers.pytorch_utils.Conv1D")
class TransposedLinearRule(LinearRule):
    """The linear layer of GPT-2 in Hugging Face's transformers: its weight is in x out."""

    @staticmethod
    def matrix(layer: nn.Module, weight: Tensor) -> Tensor:
        return weight.mT

    @staticmethod
    def weight(layer: nn.Module, matrix: Tensor, like: Tensor) -> Tensor:
        return matrix.mT

    @staticmethod
    def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight.mT, bias)
