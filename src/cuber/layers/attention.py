"""Multi-head attention: the projections of its inputs and of its output."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber.layers.composite import CompositeRule, Part, Weights
from cuber.layers.rule import register, variant

SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


@register(nn.MultiheadAttention)
class AttentionRule(CompositeRule):
    """The packed projection of query, key and value is one layer: each third of it is protected on all their vectors.

    Where keys or values have another dimension, there are three layers, and their common bias belongs to none of them.
    """

    @staticmethod
    def parts(module: nn.Module) -> dict[str, Part]:
        attention = cast(nn.MultiheadAttention, module)
        if attention.in_proj_weight is None:
            parts = {name: Part(module, name, None) for name in SEPARATE}
        else:
            parts = {"in_proj_weight": Part(module, "in_proj_weight", "in_proj_bias")}
        return parts | {"out_proj": Part(attention.out_proj, "weight", "bias")}

    @staticmethod
    def forward(
        module: nn.Module, weights: Weights, query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        attention = cast(nn.MultiheadAttention, module)
        inputs = query, key, value

        def samples_first(x: Tensor) -> Tensor:
            if x.is_nested or (attention.batch_first and x.dim() == 3):
                return x
            return x.transpose(0, 1) if x.dim() == 3 else x.unsqueeze(0)

        replaced: dict[str, Any] = {}
        if attention.in_proj_weight is None:
            for name, x in zip(SEPARATE, inputs, strict=True):
                weights.observe(name, samples_first(x))
                replaced[name], _ = weights.weight(name)
        else:
            for x in {id(x): x for x in inputs}.values():  # for self-attention, all three are one
                weights.observe("in_proj_weight", samples_first(x))
            replaced["in_proj_weight"], replaced["in_proj_bias"] = weights.weight("in_proj_weight")
        weight, bias = weights.weight("out_proj")
        observed = weights.is_observed("out_proj")
        if observed:  # torch projects in the same call: by the identity, so that the input of the projection is known
            identity, zero = torch.eye(len(weight)).to(weight), weight.new_zeros(len(weight))
            replaced["out_proj"] = SimpleNamespace(weight=identity, bias=zero)
        else:
            replaced["out_proj"] = SimpleNamespace(weight=weight, bias=bias)
        output, shares = type(attention).forward(variant(module, **replaced), *inputs, *arguments, **named)
        if observed:
            weights.observe("out_proj", samples_first(output))
            output = functional.linear(output, weight, bias)
        return output, shares
