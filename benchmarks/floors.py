"""The least that a step can cost: GPM and TRGP written by hand for one network, plain SGD and nothing else.

No looks at what somebody may have changed, no state, no other optimizer, no other layers. For TRGP it takes the form
with the fewest products: the effective weight itself takes the steps, by the gradient outside the pool and by
``(W B_j)(W B_j)'`` times the gradient within B_j. What our steps cost beyond this is what being general costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.subjects import LEARNING_RATE, MLP_SUBJECT, OWNED
from benchmarks.timing import Figure, ratios


class ByHand:
    """A layer whose gradient comes out projected; with ``scaled``, two old tasks' weights are scaled besides."""

    def __init__(self, layer: nn.Linear, size: int, *, scaled: bool) -> None:
        self.weight, self.scaled = layer.weight, scaled
        self.effective = self.weight.detach().clone() if scaled else self.weight
        basis = torch.linalg.qr(torch.randn(layer.in_features, layer.in_features)).Q
        self.outside = basis[:, size:].contiguous()
        drawn = torch.randperm(size)
        share = round((1 - OWNED) * size)
        self.not_owned = [basis[:, drawn[:share]].contiguous(), basis[:, drawn[share : 2 * share]].contiguous()]
        read = self.weight.detach() @ basis[:, :size]
        self.squares = [read @ read.mT for _ in self.not_owned]
        self.total = torch.zeros_like(self.effective)
        """Of all gradients: what the scalings can be found from."""
        layer.forward = lambda x: _Product.apply(x, self.weight, self)  # type: ignore[method-assign]

    def take_step(self) -> None:
        delta, x, outside = self.seen
        inside = x - outside
        self.effective.add_(self.weight.grad, alpha=-LEARNING_RATE)  # type: ignore[arg-type]
        for square, columns in zip(self.squares, self.not_owned, strict=True):
            owned = torch.addmm(inside, x @ columns, columns.mT, alpha=-1)
            self.effective.addmm_((delta @ square).mT, owned, alpha=-LEARNING_RATE)
        self.total.addmm_(delta.mT, x, alpha=LEARNING_RATE)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: ByHand) -> Tensor:
        ctx.layer, ctx.x = layer, x
        return functional.linear(x, layer.effective)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, Tensor, None]:
        layer, x = ctx.layer, ctx.x
        outside = (x @ layer.outside) @ layer.outside.mT
        layer.seen = delta, x, outside
        return delta @ layer.effective if ctx.needs_input_grad[0] else None, delta.mT @ outside, None


def by_hand(*, scaled: bool) -> Callable[[], None]:
    model, (x, y) = MLP_SUBJECT.build(), MLP_SUBJECT.data()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    layers = [ByHand(layer, size, scaled=scaled) for layer, size in zip(linear, MLP_SUBJECT.pools, strict=True)]
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def work() -> None:
        for chosen in torch.randperm(len(y)).split(MLP_SUBJECT.batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            if scaled:
                with torch.no_grad():
                    for layer in layers:
                        layer.take_step()

    return work


def measure(quick: bool) -> list[Figure]:
    figures = []
    for threads in (1,) if quick else (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        works = {"bare": MLP_SUBJECT.bare(), "GPM": by_hand(scaled=False), "TRGP": by_hand(scaled=True)}
        found = ratios(works, "bare", 5 if quick else 25)
        figures += [
            Figure(f"step, {MLP_SUBJECT.name}, {method} by hand, threads {threads}", found[method])
            for method in ("GPM", "TRGP")
        ]
    return figures
