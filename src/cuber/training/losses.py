"""The losses of an epoch, summed without waiting for each of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Losses:
    """Collects each step's loss; looked at now and then, as every look waits for the computation to catch up."""

    def __init__(self) -> None:
        self.steps = 0
        """How many losses have been looked at."""
        self.not_finite: tuple[int, float] | None = None
        """The first step (from 1) whose loss was NaN or infinite, and that loss."""
        self._pending: list[tuple[Tensor, int]] = []
        self._total = 0.0
        self._samples = 0

    def add(self, loss: Tensor, samples: int) -> None:
        """The mean loss of one batch of so many samples."""
        self._pending.append((loss.detach(), samples))

    def look(self) -> float:
        """The mean loss per sample so far."""
        if self._pending:
            values = torch.stack([loss for loss, _ in self._pending]).double().cpu()
            if self.not_finite is None and not bool(values.isfinite().all()):
                position = int((~values.isfinite()).nonzero()[0])
                self.not_finite = self.steps + position + 1, float(values[position])
            for value, (_, samples) in zip(values.tolist(), self._pending, strict=True):
                # One after another: however often somebody looks, the sum has the same bits.
                self._total += value * samples
                self._samples += samples
            self.steps += len(self._pending)
            self._pending = []
        return self._total / max(self._samples, 1)

    def state(self) -> dict[str, Any]:
        """What must be known to go on."""
        self.look()
        return {
            "steps": self.steps,
            "total": self._total,
            "samples": self._samples,
            "not_finite": self.not_finite,
        }

    @classmethod
    def of(cls, state: dict[str, Any]) -> Losses:
        """The losses that had this state."""
        losses = cls()
        losses.steps, losses._total, losses._samples = state["steps"], state["total"], state["samples"]
        losses.not_finite = state.get("not_finite")  # which an earlier version did not save
        return losses
