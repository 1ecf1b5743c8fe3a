"""The network of Split CIFAR-100 and OL-CIFAR100."""

from __future__ import annotations

from torch import Tensor, nn

from cuber.errors import CuberError

CONVOLUTIONS = ((64, 4, 0.2), (128, 3, 0.2), (256, 2, 0.5))
"""Filters, kernel size and dropout of each convolution."""
WIDTH = 2048


class AlexNet5(nn.Module):
    """The backbone "5-layer AlexNet": three convolutions and two linear layers of 2048, to put heads on.

    The paper counts layers without the head. Each convolution, without padding, is followed by batch normalization,
    ReLU, dropout and a 2x2 maximum; each linear layer by batch normalization, ReLU and dropout of one half. As in the
    published code there is no bias anywhere but the shift of the normalization layers, so give the heads none either.

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
