"""Checks of what callers pass, each with one sentence that says what to do."""

from __future__ import annotations

from torch import nn

from cuber.errors import CuberError


def check_dense(model: nn.Module, owner: str) -> None:
    """Raise if a trained layer has sparse gradients, which cannot be combined with others."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise CuberError(
                f"{owner} mixes gradients, and those of '{name}' are sparse: make that layer with sparse=False"
            )
