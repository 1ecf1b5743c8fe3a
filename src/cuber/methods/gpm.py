"""Gradient Projection Memory (Saha, Garg and Roy, 2021): CUBER with regime 1 alone.

Weights do not move along the input subspaces of old tasks, so that old tasks keep their outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuber.core.averaging import AveragedWeights
from cuber.methods.cuber import SubspaceMethod


@dataclass(eq=False, repr=False)
class GPM(AveragedWeights, SubspaceMethod):
    """Protect the input subspace of every old task in every layer.

    Args:
        model: any ``nn.Module``, with a ``MultiHead`` where tasks have a head each.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.
        mask: function of a batch that says which positions are real, or None; default: ``attention_mask``.

    >>> learner = GPM(nn.Linear(4, 2), threshold=0.99)
    """
