"""The vision transformer of several benchmarks."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import ViTConfig, ViTModel

DIGITS = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_hidden_layers": 2}
"""For scikit-learn's digits."""


class ClassToken(nn.Module):
    """The features of a ViT's class token, without dropout.

    Args:
        width: number of features; inner layers have ``expansion`` times as many.
        options: more of ``ViTConfig``.
    """

    def __init__(self, width: int, expansion: int = 2, **options: int) -> None:
        super().__init__()
        sizes = {"hidden_size": width, "intermediate_size": expansion * width, "num_attention_heads": 4}
        config = ViTConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options)
        self.vit = ViTModel(config, add_pooling_layer=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.vit(x).last_hidden_state[:, 0]
