"""An old task's gradient, small enough to keep."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class PrunedGradient:
    """The largest entries of a gradient, and the norm that the whole of it had."""

    places: Tensor
    """Which entries are kept: a bit for each of all, eight in a byte."""
    values: Tensor
    norm: float

    @classmethod
    def of(cls, gradient: Tensor, keep: float) -> PrunedGradient:
        """Keep the fraction ``keep`` of the entries, at least one."""
        flat = gradient.flatten()
        count = max(1, round(keep * flat.numel()))
        kept = torch.zeros(flat.numel(), dtype=torch.bool, device=flat.device)
        kept[flat.abs().topk(count).indices] = True
        return cls(_packed(kept), flat[kept], float(gradient.norm()))

    def cosine(self, gradient: Tensor) -> float:
        """``<g_j, g> / (||g_j|| ||g||)``; 0 where one of them is 0."""
        norms = self.norm * float(gradient.norm())
        if norms == 0:
            return 0.0
        return float(self.entries(gradient) @ self.values.to(gradient)) / norms

    def entries(self, gradient: Tensor) -> Tensor:
        """Those of another gradient, or weight, in the places that are kept here."""
        return gradient.flatten()[_unpacked(self.places.to(gradient.device), gradient.numel())]


def _packed(kept: Tensor) -> Tensor:
    bits = torch.cat([kept, kept.new_zeros(-len(kept) % 8)]).to(torch.uint8).reshape(-1, 8)
    return (bits << _positions(kept)).sum(1, dtype=torch.uint8)


def _unpacked(places: Tensor, count: int) -> Tensor:
    return (places.unsqueeze(1) >> _positions(places) & 1).bool().flatten()[:count]


def _positions(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
