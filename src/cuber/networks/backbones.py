"""The backbones of the paper's experiments."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional

from cuber.errors import CuberError

FORMAT = torch.channels_last
"""Memory format of images: on a CPU a step of AlexNet5 takes 0.8, of a ResNet 0.7 times as long as with the default."""


class MLP(nn.Module):
    """Linear layers with a ReLU after each but the last; samples of any shape are flattened first.

    Args:
        widths: Number of inputs, of units of each hidden layer, and of outputs.
        bias: Whether the layers have biases; those of the paper's network have none.
        last_relu: Whether a ReLU follows the last layer too, for a backbone under heads.

    >>> MLP(784, 100, 100, 10)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 10])
    """

    def __init__(self, *widths: int, bias: bool = False, last_relu: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairwise(widths))
        self.last_relu = last_relu

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for position, layer in enumerate(self.layers, start=1):
            x = layer(x)
            if position < len(self.layers) or self.last_relu:
                x = x.relu()
        return x


class Dropout(nn.Dropout):
    """``nn.Dropout`` that takes four random numbers of 16 bits from every draw.

    Drawing one for each number takes a fifth of a step of AlexNet5 on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        kept = round((1 - self.p) * 2**16)
        if not self.training or not 0 < kept < 2**16:
            return super().forward(x)
        if not x.is_contiguous(memory_format=FORMAT if x.dim() == 4 else torch.contiguous_format):
            x = x.contiguous()
        draws = torch.empty(math.ceil(x.numel() / 4), dtype=torch.int64, device=x.device)
        numbers = draws.random_(torch.iinfo(torch.int64).min, None).view(torch.int16)
        mask = numbers[: x.numel()].as_strided(x.shape, x.stride()) < kept - 2**15
        return x * mask.to(x.dtype).mul_(2**16 / kept)


class AlexNet5(nn.Module):
    """The paper's "5-layer AlexNet" without the head: three convolutions and two linear layers of width 2048.

    Each convolution, without padding, is followed by batch normalization, ReLU, dropout and 2x2 max pooling; each
    linear layer by batch normalization, ReLU and dropout of 0.5. As in the published code, only the normalization
    layers have a bias, so the heads should have none either.

    Args:
        channels: Number of channels of the images.
        side: Their height and width, at least 19.

    Raises:
        CuberError: The images are too small.

    >>> from cuber import MultiHead
    >>> model = MultiHead(AlexNet5(), AlexNet5.features, [10] * 10, bias=False)
    >>> model(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    convolutions = ((64, 4, 0.2), (128, 3, 0.2), (256, 2, 0.5))
    """Number of filters, kernel size and dropout of each convolution."""
    features = 2048

    def __init__(self, channels: int = 3, side: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = channels
        for filters, kernel, dropout in self.convolutions:
            layers += [nn.Conv2d(width, filters, kernel, bias=False), nn.BatchNorm2d(filters)]
            layers += [nn.ReLU(), Dropout(dropout), nn.MaxPool2d(2)]
            width, side = filters, (side - kernel + 1) // 2
        if side < 1:
            raise CuberError("AlexNet5 needs images of at least 19x19 pixels; pad or enlarge them")
        layers.append(nn.Flatten())
        width *= side * side
        for _ in range(2):
            layers += [nn.Linear(width, self.features, bias=False), nn.BatchNorm1d(self.features)]
            layers += [nn.ReLU(), Dropout(0.5)]
            width = self.features
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(_laid_out(x))


class ReducedResNet18(nn.Module):
    """The paper's "reduced ResNet-18" without the head: four stages of two blocks, with a third of the usual filters.

    The stages have 20, 40, 80 and 160 filters; the paper's 180, 360, 720 and 1440 are the sizes of input vectors, 9 per
    filter. It ends with 2x2 average pooling, so ``features`` depends on the size of the images: 640 for 32x32 and 1440
    for 84x84 with a stride of 2. Only normalization layers have a bias.

    Args:
        channels: Number of channels of the images.
        side: Their height and width.
        first_stride: Stride of the first convolution.

    Raises:
        CuberError: The images are too small.

    >>> ReducedResNet18(side=84, first_stride=2).features
    1440
    """

    filters = (20, 40, 80, 160)

    def __init__(self, channels: int = 3, side: int = 32, first_stride: int = 1) -> None:
        super().__init__()
        self.conv = _conv3x3(channels, self.filters[0], first_stride)
        self.norm = nn.BatchNorm2d(self.filters[0])
        blocks: list[BasicBlock] = []
        width = self.filters[0]
        for stage, filters in enumerate(self.filters):
            blocks += [BasicBlock(width, filters, stride=2 if stage else 1), BasicBlock(filters, filters, stride=1)]
            width = filters
        self.blocks = nn.Sequential(*blocks)
        side = math.ceil(side / (8 * first_stride))
        if side < 2:
            smallest = 8 * first_stride + 1
            raise CuberError(
                f"ReducedResNet18 with first_stride={first_stride} needs images of at least {smallest}x{smallest} "
                "pixels; pad or enlarge them"
            )
        self.features = width * (side // 2) ** 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(_laid_out(x))).relu()
        return functional.avg_pool2d(self.blocks(x), 2).flatten(1)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, width: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(width, filters, stride)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = _conv3x3(filters, filters, 1)
        self.norm2 = nn.BatchNorm2d(filters)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(width, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(inner)) + self.shortcut(x)).relu()


def _laid_out(x: Tensor) -> Tensor:
    """Return images in ``FORMAT``; torch cannot change it inside ``torch.func.vmap``, which EWC uses."""
    return x if is_functorch_wrapped_tensor(x) else x.contiguous(memory_format=FORMAT)


def _conv3x3(width: int, filters: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(width, filters, 3, stride, padding=1, bias=False)
