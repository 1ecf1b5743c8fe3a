"""A-GEM (Chaudhry et al., 2018), from the solution of its quadratic program with one constraint."""

from __future__ import annotations

from torch import Tensor

from tests.oracles.replay import SlowReplay


class SlowAGEM(SlowReplay):
    """The nearest vector to the gradient that does not point against the reference."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.projected: list[bool] = []

    def combine(self, own: Tensor, replayed: Tensor) -> Tensor:
        along = sum(float(a) * float(b) for a, b in zip(own, replayed, strict=True))
        self.projected.append(along < 0)
        if along >= 0:
            return own
        return own - along / sum(float(b) * float(b) for b in replayed) * replayed
