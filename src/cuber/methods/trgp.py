"""Trust Region Gradient Projection (Lin et al., 2022): CUBER without regime 3.

Old tasks whose subspace holds much of the new task's first gradient are reused by scalings; none may change.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuber.core.averaging import AveragedWeights
from cuber.core.settings import setting
from cuber.methods.cuber import SubspaceMethod


@dataclass(eq=False, repr=False)
class TRGP(AveragedWeights, SubspaceMethod):
    """Reuse the weights of the nearest old tasks, scaled, layer by layer.

    Args:
        model: any ``nn.Module``, with a ``MultiHead`` where tasks have a head each.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.
        mask: function of a batch that says which positions are real, or None; default: ``attention_mask``.

    >>> learner = TRGP(nn.Linear(4, 2), eps1=0.4, selected=3)
    """

    eps1: float = setting(0.5, "share of the gradient that must lie in an old task's subspace (above 1: GPM)", low=0)
    selected: int = setting(2, "how many old tasks a layer may reuse", low=0)
