"""The multi-layer perceptron of Permuted MNIST."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with a ReLU after each but the last.

    Args:
        widths: Number of units of each layer, from the input to the output.
        bias: Whether layers have a bias; the paper's network has none.
        last_relu: Whether the last layer has a ReLU too, for a backbone.

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
