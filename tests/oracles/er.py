"""ER (Chaudhry et al., 2019): one batch of new and replayed samples together."""

from __future__ import annotations

from torch import Tensor

from tests.oracles.replay import SlowReplay


class SlowER(SlowReplay):
    """The mean over all samples, where each half is weighted by what ``share`` says of it."""

    share = 0.5

    def combine(self, own: Tensor, replayed: Tensor) -> Tensor:
        return own * (1 - self.share) + replayed * self.share
