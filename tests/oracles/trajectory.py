"""Sections 2 and 3 of algorithm.md for a multi-layer perceptron, dense, in float64, nothing clever.

Every subspace is a d x d projector, every scaling a d x d matrix between two of them, every gradient autograd's.
It knows GPM, TRGP and CUBER by their thresholds alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from tests.oracles.bases import explain
from tests.oracles.dense import projector

Batches = list[tuple[Tensor, Tensor]]


@dataclass
class SlowLayer:
    weight: Tensor
    """out x d, the bias as its last column."""
    pool: Tensor
    bases: list[Tensor] = field(default_factory=list)
    """Per task, B_j."""
    gradients: list[tuple[Tensor, float]] = field(default_factory=list)
    """Per task, the pruned gradient (zeros elsewhere) and the norm of the whole."""
    inputs: list[Tensor] = field(default_factory=list)
    """Per task, the input vectors that its basis was made of (m x d), for the penalty that weighs by their energy."""
    scalings: list[dict[int, Tensor]] = field(default_factory=list)
    """Per task, old task -> B A B', dense."""
    start: Tensor | None = None
    regimes: dict[int, int] = field(default_factory=dict)
    fell: dict[int, int] = field(default_factory=dict)
    learning: dict[int, Tensor] = field(default_factory=dict)

    def dense(self, task: int) -> Tensor:
        return projector(self.bases[task])

    def effective(self, scalings: dict[int, Tensor]) -> Tensor:
        total = self.weight
        for task, matrix in scalings.items():
            total = total + self.weight @ self.dense(task) @ matrix @ self.dense(task)
        return total

    def protected(self) -> Tensor:
        """The projector onto everything that a task outside regime 3 reads."""
        read = [self.weight.new_zeros(self.weight.shape[1], 0)]
        for task, regime in self.regimes.items():
            if regime != 3:
                read += [self.bases[task], *(self.bases[other] for other in self.scalings[task])]
        return projector(torch.cat(read, dim=1))

    def cosine(self, task: int, gradient: Tensor) -> float:
        kept, norm = self.gradients[task]
        return float((kept * gradient).sum()) / (norm * float(gradient.norm()))


@dataclass
class SlowLearner:
    """GPM: ``eps1 > 1``. TRGP: ``eps2 > 1``. CUBER: neither."""

    layers: list[SlowLayer]
    bias: bool
    lr: float
    eps1: float
    eps2: float
    lam: float
    penalty: str
    every_step: bool
    threshold: float
    keep: float
    selected: int = 2
    epoch: int = 0

    @classmethod
    def around(cls, weights: list[Tensor], **settings: object) -> SlowLearner:
        layers = [SlowLayer(w.detach().clone(), w.new_zeros(w.shape[1], 0)) for w in weights]
        return cls(layers, **settings)  # type: ignore[arg-type]

    @property
    def tasks(self) -> int:
        return len(self.layers[0].bases)

    def forward(self, x: Tensor, effective: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Logits, and the input vectors of every layer (m x d)."""
        seen = []
        for position, weight in enumerate(effective):
            if position:
                x = x.relu()
            if self.bias:
                x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
            seen.append(x)
            x = x @ weight.T
        return x, seen

    def logits(self, task: int, x: Tensor) -> Tensor:
        return self.forward(x, [layer.effective(layer.scalings[task]) for layer in self.layers])[0]

    def gradients(self, batches: Batches) -> tuple[list[Tensor], list[dict[int, Tensor]]]:
        """Of the mean loss over all samples, for every W and every scaling being learnt."""
        for layer in self.layers:
            layer.weight = layer.weight.detach().requires_grad_()
            layer.learning = {task: matrix.detach().requires_grad_() for task, matrix in layer.learning.items()}
        logits = [self.forward(x, [layer.effective(layer.learning) for layer in self.layers])[0] for x, _ in batches]
        functional.cross_entropy(torch.cat(logits), torch.cat([y for _, y in batches])).backward()
        weights = [layer.weight.grad for layer in self.layers]
        scalings = [{task: matrix.grad for task, matrix in layer.learning.items()} for layer in self.layers]
        for layer in self.layers:
            layer.weight = layer.weight.detach()
            layer.learning = {task: matrix.detach() for task, matrix in layer.learning.items()}
        return weights, scalings  # type: ignore[return-value]

    def begin_task(self, batches: Batches) -> None:
        self.epoch = 0
        for layer in self.layers:
            layer.start, layer.learning, layer.fell = layer.weight.clone(), {}, {}
            layer.regimes = dict.fromkeys(range(self.tasks), 1)
        for layer, gradient in zip(self.layers, self.gradients(batches)[0], strict=True):
            ratios = {task: float((gradient @ layer.dense(task)).norm() / gradient.norm()) for task in layer.regimes}
            candidates = sorted((task for task in ratios if ratios[task] >= self.eps1), key=lambda task: -ratios[task])
            for task in candidates[: self.selected]:
                layer.regimes[task] = 3 if layer.cosine(task, gradient) >= self.eps2 else 2
                layer.learning[task] = torch.zeros_like(layer.dense(task))

    def let_fall(self, layer: SlowLayer, gradient: Tensor) -> None:
        for task, regime in layer.regimes.items():
            if regime == 3 and layer.cosine(task, gradient) < self.eps2:
                layer.regimes[task], layer.fell[task] = 2, self.epoch + self.every_step

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        weights, scalings = self.gradients([batch])
        for layer, gradient, of_scalings in zip(self.layers, weights, scalings, strict=True):
            if self.every_step:
                self.let_fall(layer, gradient)
            changing = [task for task, regime in layer.regimes.items() if regime == 3]
            for task in changing:
                # A square is never pulled past the point where it is 0, however large lam is.
                strength = self.lam if self.penalty == "norm" else min(self.lam, 1 / (2 * self.lr * len(changing)))
                gradient = gradient + strength * self.pull(layer, task)
            identity = torch.eye(gradient.shape[1], dtype=gradient.dtype)
            layer.weight = layer.weight - self.lr * gradient @ (identity - layer.protected())
            layer.learning = {task: A - self.lr * of_scalings[task] for task, A in layer.learning.items()}

    def pull(self, layer: SlowLayer, task: int) -> Tensor:
        weight = layer.weight.clone().requires_grad_()
        inside = (weight - layer.start) @ layer.dense(task)
        if self.penalty == "norm":
            if not inside.any():
                return torch.zeros_like(weight)
            inside.norm().backward()
        elif self.penalty == "squared":
            inside.square().sum().backward()
        else:  # the summed squared change of the old answers, in units of the strongest direction
            largest = torch.linalg.matrix_norm(layer.inputs[task] @ layer.dense(task), 2) ** 2
            ((layer.inputs[task] @ inside.T).square().sum() / largest).backward()
        return weight.grad  # type: ignore[return-value]

    def end_epoch(self, batches: Batches) -> None:
        self.epoch += 1
        if not self.every_step:
            for layer, gradient in zip(self.layers, self.gradients(batches)[0], strict=True):
                self.let_fall(layer, gradient)

    def end_task(self, batches: Batches) -> None:
        for layer, gradient in zip(self.layers, self.gradients(batches)[0], strict=True):
            smallest = gradient.abs().flatten().sort(descending=True).values[round(self.keep * gradient.numel()) - 1]
            kept = torch.where(gradient.abs() >= smallest, gradient, torch.zeros_like(gradient))
            layer.gradients.append((kept, float(gradient.norm())))
        inputs = torch.cat([x for x, _ in batches])
        _, seen = self.forward(inputs, [layer.effective(layer.learning) for layer in self.layers])
        for layer, vectors in zip(self.layers, seen, strict=True):
            old, new = explain(vectors.T, layer.pool, self.threshold)
            layer.bases.append(torch.cat([layer.pool[:, old], new], dim=1))
            layer.pool = torch.cat([layer.pool, new], dim=1)
            layer.scalings.append(dict(layer.learning))
            layer.inputs.append(vectors)
