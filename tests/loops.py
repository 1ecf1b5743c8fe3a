"""A user's own training loop around a learner, and what it may ask about the outcome."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer

from cuber import CuberWarning, Method

loss_fn = nn.CrossEntropyLoss()
MakeOptimizer = Callable[[Any], Optimizer]


def sgd(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.05)


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD": sgd,
    "momentum": lambda p: SGD(p, lr=0.02, momentum=0.9),
    "Nesterov": lambda p: SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "weight decay": lambda p: SGD(p, lr=0.05, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5),
    "LBFGS": lambda p: LBFGS(p, lr=0.1, max_iter=3),
}


def train(
    learner: Method,
    optimizer: Optimizer,
    loader: Iterable[Any],
    *,
    epochs: int = 1,
    after_step: Callable[[], object] = lambda: None,
    end_epochs: bool = True,
) -> None:
    """Steps on every batch, between ``wrap`` and ``end_task``."""
    for _ in range(epochs):
        for x, y in loader:

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = loss_fn(learner.model(x), y)
                loss.backward()
                return loss

            if isinstance(optimizer, LBFGS):
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            after_step()
        if end_epochs:
            learner.end_epoch()


def learn(learner: Method, loader: Iterable[Any], make: MakeOptimizer = sgd, **how: Any) -> None:
    """A whole task."""
    learner.begin_task(loader, loss_fn)
    train(learner, learner.wrap(make(learner.parameters())), loader, **how)
    learner.end_task(loader)


def detach(learner: Method) -> None:
    """Detach a learner, whatever its tasks lose by that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CuberWarning)
        learner.detach()


def weights(learner: Any) -> dict[str, Tensor]:
    """``[W | b]`` of every protected layer, as it is now."""
    return {name: layer.matrix().detach().clone() for name, layer in learner.layers.items()}


@dataclass(frozen=True)
class Watch:
    """What the weights and the pools were when a task began, to tell how far the weights have gone since."""

    learner: Any
    weights: dict[str, Tensor]
    pools: dict[str, Tensor]

    @classmethod
    def over(cls, learner: Any) -> Watch:
        return cls(learner, weights(learner), {name: pool.basis.clone() for name, pool in learner.memory.items()})

    def drift(self) -> dict[str, float]:
        """``||(W - w') U|| / ||w'||`` of every layer, over the whole pool."""
        return {
            name: float(((now - before).double() @ self.pools[name].double()).norm() / before.double().norm())
            for name, now, before in self._pairs()
        }

    def moved(self) -> float:
        """The largest relative change of any layer, wherever it points."""
        return max(float((now - before).norm() / before.norm()) for _, now, before in self._pairs())

    def held(self) -> None:
        """Fail unless every layer has kept its protected directions."""
        for name, share in self.drift().items():
            assert share < 1e-5, f"layer {name} moved by {share:.1e} along its pool"

    def _pairs(self) -> list[tuple[str, Tensor, Tensor]]:
        return [(name, now, self.weights[name]) for name, now in weights(self.learner).items() if name in self.weights]


@torch.no_grad()
def logits(learner: Method, task: int | None, x: Tensor) -> Tensor:
    """What the model answers for a task, in evaluation mode; it is left as it was found."""
    was_training = learner.model.training
    learner.model.eval()
    with learner.as_task(task) as model:
        answer = model(x)
    learner.model.train(was_training)
    return answer


def scalings(learner: Any, task: int) -> dict[str, Any]:
    """The scalings that a task has learned, by layer."""
    kept = {name: memory.scalings[task] for name, memory in learner.memory.items()}
    return {name: scaling for name, scaling in kept.items() if scaling is not None}


def gradients(learner: Any, task: int) -> dict[str, Any]:
    """The gradients that a task has left, by layer."""
    kept = {name: memory.gradients[task] for name, memory in learner.memory.items()}
    return {name: gradient for name, gradient in kept.items() if gradient is not None}


def scaled(learner: Any, task: int, name: str) -> Tensor:
    """What a task has learned to make of old weights: S, in the coordinates of the columns that it scales."""
    return learner.known_scaling(learner.memory[name].scalings[task], name).dense()  # type: ignore[no-any-return]


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models hold the same parameters and buffers, bit for bit."""
    state, other_state = one.state_dict(), other.state_dict()
    return state.keys() == other_state.keys() and all(torch.equal(state[key], other_state[key]) for key in state)
