"""Layers that are linear in the last dimension of their input, or of both their inputs."""

from __future__ import annotations

from typing import cast

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


@register(nn.Bilinear)
class BilinearRule(Rule):
    """``y = x1' A x2 + b`` is linear in A: an input vector has the products of all entries of x1 and x2.

    Both inputs of a call are passed on as one, x1 before x2 in the last dimension.
    """

    @staticmethod
    def bind(layer: nn.Module, input1: Tensor, input2: Tensor) -> tuple[nn.Module, Tensor]:
        return layer, torch.cat([input1, input2], dim=-1)

    @staticmethod
    def vectors(layer: nn.Module, x: Tensor) -> Tensor:
        first, second = BilinearRule._both(layer, x.reshape(-1, x.shape[-1]))
        return (first.unsqueeze(2) * second.unsqueeze(1)).flatten(1)

    @staticmethod
    def outputs(layer: nn.Module, y: Tensor) -> Tensor | None:
        return None if y.dim() < 2 else y.reshape(-1, y.shape[-1])

    @staticmethod
    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        return nn.Bilinear.forward(cast(nn.Bilinear, layer), *BilinearRule._both(layer, x))

    @staticmethod
    def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.bilinear(*BilinearRule._both(layer, x), weight, bias)

    @staticmethod
    def dimensions_after_units(layer: nn.Module) -> int:
        return 0

    @staticmethod
    def _both(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        bilinear = cast(nn.Bilinear, layer)
        first, second = x.split([bilinear.in1_features, bilinear.in2_features], dim=-1)
        return first, second
