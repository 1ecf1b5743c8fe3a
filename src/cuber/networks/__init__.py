"""The networks of the paper, and multi-head output for any backbone."""

from cuber.networks.alexnet import AlexNet5
from cuber.networks.heads import MultiHead
from cuber.networks.mlp import MLP
from cuber.networks.resnet import ReducedResNet18

__all__ = ["MLP", "AlexNet5", "MultiHead", "ReducedResNet18"]
