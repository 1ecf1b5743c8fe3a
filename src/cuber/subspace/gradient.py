"""An old task's gradient, small enough to keep."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class PrunedGradient:
    """The largest entries of a gradient (index and value) and the norm that the whole of it had."""

    indices: Tensor
    values: Tensor
    norm: float

    @classmethod
    def of(cls, gradient: Tensor, keep: float) -> PrunedGradient:
        """Keep the fraction ``keep`` of the entries, at least one."""
        flat = gradient.flatten()
        count = max(1, round(keep * flat.numel()))
        indices = flat.abs().topk(count).indices.sort().values
        index_type = torch.int32 if flat.numel() < 2**31 else torch.int64
        return cls(indices.to(index_type), flat[indices].clone(), float(gradient.norm()))

    def cosine(self, gradient: Tensor) -> float:
        """``<g_j, g> / (||g_j|| ||g||)``; 0 where one of them is 0."""
        norms = self.norm * float(gradient.norm())
        if norms == 0:
            return 0.0
        entries = gradient.flatten()[self.indices.long().to(gradient.device)]
        return float(entries @ self.values.to(gradient)) / norms
