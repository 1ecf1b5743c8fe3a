"""Networks of the paper, and heads for anybody's."""

from cuber.networks.heads import MultiHead
from cuber.networks.mlp import MLP

__all__ = ["MLP", "MultiHead"]
