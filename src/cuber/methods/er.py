"""Experience replay with a reservoir (Chaudhry et al., 2019, "ER_Res"): train on old and new samples together.

The reservoir holds a uniform sample of all data seen so far. Each step adds a batch drawn from it to the batch of the
present task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from cuber.core.batches import Batch
from cuber.core.replay_method import ReplayMethod
from cuber.core.settings import setting
from cuber.replay import Reservoir


@dataclass(eq=False, repr=False)
class ER(ReplayMethod):
    """Train on remembered samples of old tasks together with new ones.

    Args:
        model: any ``nn.Module``, with a ``MultiHead`` where tasks have a head each.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.

    >>> learner = ER(nn.Linear(4, 2), memory=500, replay=32)
    """

    remembered: ClassVar[dict[str, Any]] = {"seen": int}

    share: float = setting(0.5, "weight of the gradient of replayed samples", low=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen = 0
        """Number of samples of all tasks that the reservoir was offered."""

    def combine(self, gradients: list[Tensor], replayed: list[Tensor]) -> list[Tensor]:
        """Return (1 - share) g + share r: with 0.5 and batches of one size, the gradient of the joint mean loss."""
        return [g.lerp(r, self.share) for g, r in zip(gradients, replayed, strict=True)]

    def remember(self, loader: Iterable[Batch]) -> None:
        """Continue the reservoir of the tasks before."""
        reservoir = Reservoir(self.memory, self.generator, self.seen).read(loader)
        self.episodic_memory = self.episodic_memory.only(reservoir.old()).add(self.tasks, reservoir.new())
        self.seen = reservoir.seen
