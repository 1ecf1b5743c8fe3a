"""Convolutions in one, two and three dimensions: the input vectors are the patches under the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from cuber.layers.rule import Rule, register, variant


def patches(x: Tensor, conv: _ConvNd, stride: Sequence[int]) -> Tensor:
    """Return what the kernel of a convolution covers at each position of a padded batch, group by group."""
    spatial = len(conv.kernel_size)
    x = x.unflatten(1, (conv.groups, -1)).flatten(0, 1)
    for dim, (size, step, dilation) in enumerate(zip(conv.kernel_size, stride, conv.dilation, strict=True)):
        x = x.unfold(2 + dim, dilation * (size - 1) + 1, step)[..., ::dilation]
    # samples x channels x positions x kernel -> (samples x positions) x (channels x kernel)
    return x.movedim(1, 1 + spatial).flatten(1 + spatial).flatten(0, spatial)


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
        return patches(x, conv, conv.stride)

    @staticmethod
    def outputs(layer: nn.Module, y: Tensor) -> Tensor | None:
        conv = cast(_ConvNd, layer)
        if y.dim() != len(conv.kernel_size) + 2:
            return None
        return y.unflatten(1, (conv.groups, -1)).movedim(2, -1).flatten(0, -2)

    @staticmethod
    def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return cast(nn.Conv2d, layer)._conv_forward(x, weight, bias)


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class TransposedConvolutionRule(ConvolutionRule):
    """A convolution with stride 1 of the input with zeros between its positions, by the flipped kernel."""

    computed_by = ("forward", "_output_padding")

    @staticmethod
    def bind(layer: nn.Module, input: Tensor, output_size: Sequence[int] | None = None) -> tuple[nn.Module, Tensor]:
        if output_size is None:
            return layer, input
        conv = cast(Any, layer)
        options = conv.stride, conv.padding, conv.kernel_size, len(conv.kernel_size), conv.dilation
        return variant(conv, output_padding=conv._output_padding(input, list(output_size), *options)), input

    @staticmethod
    def vectors(layer: nn.Module, x: Tensor) -> Tensor:
        conv = cast(_ConvTransposeNd, layer)
        if x.dim() == len(conv.kernel_size) + 1:
            x = x.unsqueeze(0)
        apart = x.new_zeros(*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], conv.stride, strict=True)))
        positions = tuple(slice(None, None, stride) for stride in (1, 1, *conv.stride))
        apart[positions] = x
        around: list[int] = []  # last dimension first; less than 0 where padding takes positions away
        padding = cast(tuple[int, ...], conv.padding)
        options = zip(conv.kernel_size, conv.dilation, padding, conv.output_padding, strict=True)
        for size, dilation, removed, added in options:
            before = dilation * (size - 1) - removed
            around = [before, before + added, *around]
        return patches(functional.pad(apart, around), conv, [1] * len(conv.kernel_size))

    @staticmethod
    def matrix(layer: nn.Module, weight: Tensor) -> Tensor:
        # in x (out of a group) x kernel -> (groups x out of a group) x (in of a group x kernel)
        by_group = weight.unflatten(0, (cast(_ConvNd, layer).groups, -1)).transpose(1, 2)
        return by_group.flip(list(range(3, by_group.dim()))).flatten(2).flatten(0, 1)

    @staticmethod
    def weight(layer: nn.Module, matrix: Tensor, like: Tensor) -> Tensor:
        groups = cast(_ConvNd, layer).groups
        by_group = matrix.reshape(groups, like.shape[1], like.shape[0] // groups, *like.shape[2:])
        return by_group.flip(list(range(3, by_group.dim()))).transpose(1, 2).flatten(0, 1)

    @staticmethod
    def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        conv = cast(Any, layer)
        kinds = functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d
        function = cast(Any, kinds[len(conv.kernel_size) - 1])
        options = conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation
        return cast(Tensor, function(x, weight, bias, *options))
