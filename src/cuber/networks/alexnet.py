"""The network of Split CIFAR-100 and OL-CIFAR100."""

from __future__ import annotations

from torch import Tensor, nn

from cuber.errors import CuberError

CONVOLUTIONS = ((64, 4, 0.2), (128, 3, 0.2), (256, 2, 0.5))
"""Number of filters, kernel size and dropout of each convolution."""
WIDTH = 2048


class AlexNet5(nn.Module):
    """The paper's "5-layer AlexNet" without the head: three convolutions and two linear layers of width 2048.

    Each convolution, without padding, is followed by batch normalization, ReLU, dropout and 2x2 max pooling; each
    linear layer by batch normalization, ReLU and dropout of 0.5. As in the published code, only the normalization
    layers have a bias, so the heads should have none either.

    Args:
        channels: Number of input channels.
        side: Width and height of the images.

    >>> model = MultiHead(AlexNet5(), AlexNet5.features, [10] * 10, bias=False)  # doctest: +SKIP
    """

    features = WIDTH

    def __init__(self, channels: int = 3, side: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = channels
        for filters, kernel, dropout in CONVOLUTIONS:
            layers += [
                nn.Conv2d(width, filters, kernel, bias=False),
                nn.BatchNorm2d(filters),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.MaxPool2d(2),
            ]
            width, side = filters, (side - kernel + 1) // 2
        if side < 1:
            raise CuberError("AlexNet5 needs images of at least 19x19 pixels; pad or enlarge them")
        layers.append(nn.Flatten())
        width *= side * side
        for _ in range(2):
            layers += [nn.Linear(width, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.5)]
            width = WIDTH
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
