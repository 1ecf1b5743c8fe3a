"""The losses of an epoch, summed without waiting for each of them."""

from __future__ import annotations

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
            sizes = torch.tensor([samples for _, samples in self._pending], dtype=torch.float64)
            self._total += float(values @ sizes)
            self._samples += int(sizes.sum())
            self.steps += len(self._pending)
            self._pending = []
        return self._total / max(self._samples, 1)
