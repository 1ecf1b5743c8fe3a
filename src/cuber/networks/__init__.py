"""The networks of the paper, and multi-head output for any backbone."""

from cuber.networks.backbones import MLP, AlexNet5, ReducedResNet18
from cuber.networks.heads import MultiHead

__all__ = ["MLP", "AlexNet5", "MultiHead", "ReducedResNet18"]
