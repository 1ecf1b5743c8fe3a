"""Convolutions in one, two and three dimensions: the input vectors are the patches under the kernel."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from cuber.layers.rule import Rule, register


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvolutionRule(Rule):
    """With groups, the patches of all groups are vectors of one space: each group is protected on all of them."""

    computed_by = ("forward", "_conv_forward")

    @staticmethod
    def vectors(layer: nn.Module, x: Tensor) -> Tensor:
        conv = cast(_ConvNd, layer)
        spatial = len(conv.kernel_size)
        if x.dim() == spatial + 1:
            x = x.unsqueeze(0)
        # For every kind of padding, 'same' included, torch keeps what to add on each side, last dimension first.
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = functional.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
        x = x.unflatten(1, (conv.groups, -1)).flatten(0, 1)
        for dim, (size, stride, dilation) in enumerate(zip(conv.kernel_size, conv.stride, conv.dilation, strict=True)):
            x = x.unfold(2 + dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
        # samples x channels x positions x kernel -> (samples x positions) x (channels x kernel)
        return x.movedim(1, 1 + spatial).flatten(1 + spatial).flatten(0, spatial)

    @staticmethod
    def outputs(layer: nn.Module, y: Tensor) -> Tensor | None:
        conv = cast(_ConvNd, layer)
        if y.dim() != len(conv.kernel_size) + 2:
            return None
        return y.unflatten(1, (conv.groups, -1)).movedim(2, -1).flatten(0, -2)

    @staticmethod
    def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return cast(nn.Conv2d, layer)._conv_forward(x, weight, bias)
