"""Experience replay with a reservoir (Chaudhry et al., 2019, "ER_Res"): old samples beside the new ones.

A reservoir holds samples of the whole stream, each seen so far with the same chance. At each step a batch drawn from
it is learnt together with the batch of the present task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cuber.core.batches import Batch
from cuber.core.replay_method import ReplayMethod
from cuber.core.settings import setting
from cuber.replay import Reservoir


@dataclass(eq=False, repr=False)
class ER(ReplayMethod):
    """Learn samples remembered from old tasks together with the new ones."""

    share: float = setting(0.5, "part of the gradient that is of replayed samples", low=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen = 0
        """How many samples of all tasks have been offered to the reservoir."""

    def combine(self, gradients: list[Tensor], replayed: list[Tensor]) -> list[Tensor]:
        """(1 - share) g + share r: with halves, and batches of one size, that of the mean loss over both batches."""
        return [g.lerp(r, self.share) for g, r in zip(gradients, replayed, strict=True)]

    def remember(self, loader: Iterable[Batch]) -> None:
        """The reservoir goes on where the task before has left it."""
        reservoir = Reservoir(self.memory, self._generator, self.seen).read(loader)
        self.episodic_memory = self.episodic_memory.only(reservoir.old()).add(self.tasks, reservoir.new())
        self.seen = reservoir.seen

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"seen": self.seen}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.seen = state["seen"]
