"""The network of 5-Datasets and Split miniImageNet."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from cuber.errors import CuberError

FILTERS = (20, 40, 80, 160)
BLOCKS = 2


class ReducedResNet18(nn.Module):
    """The paper's "reduced ResNet-18" without the head: four stages of two blocks, with a third of the usual filters.

    The stages have 20, 40, 80 and 160 filters; the paper's 180, 360, 720 and 1440 are the sizes of input vectors, 9 per
    filter. It ends with 2x2 average pooling, so ``features`` depends on the size of the images: 640 for 32x32 and 1440
    for 84x84. Only normalization layers have a bias.

    Args:
        channels: Number of input channels.
        side: Width and height of the images.
        first_stride: Stride of the first convolution: 1 for 5-Datasets, 2 for miniImageNet.

    >>> ReducedResNet18(side=84, first_stride=2).features
    1440
    """

    def __init__(self, channels: int = 3, side: int = 32, first_stride: int = 1) -> None:
        super().__init__()
        self.conv = _conv3x3(channels, FILTERS[0], first_stride)
        self.norm = nn.BatchNorm2d(FILTERS[0])
        blocks: list[BasicBlock] = []
        width, side = FILTERS[0], _halved(side, first_stride)
        for stage, filters in enumerate(FILTERS):
            for position in range(BLOCKS):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(BasicBlock(width, filters, stride))
                width, side = filters, _halved(side, stride)
        self.blocks = nn.Sequential(*blocks)
        if side < 2:
            raise CuberError(
                f"ReducedResNet18 with first_stride={first_stride} needs images of at least "
                f"{8 * first_stride + 1}x{8 * first_stride + 1} pixels; pad or enlarge them"
            )
        self.features = width * (side // 2) ** 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
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


def _conv3x3(width: int, filters: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(width, filters, 3, stride, padding=1, bias=False)


def _halved(side: int, stride: int) -> int:
    return (side - 1) // stride + 1
