"""Elastic Weight Consolidation (Kirkpatrick et al., 2017): a spring on every weight, as stiff as old tasks need it.

After each task j, the diagonal of the Fisher information F_j says how much each weight theta_i matters to it. Later
tasks are learnt with ``lam/2 sum_j sum_i F_j,i (theta_i - theta*_j,i)^2`` added to the loss.

All springs of a weight are one: ``sum_j F_j (theta - theta*_j)^2 = A (theta - m)^2 + c``, where A is the sum of the F_j
and m the mean of the theta*_j that they weigh. So neither memory nor time grows with the number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.fisher import fisher_diagonal
from cuber.core.learner import Method
from cuber.core.settings import setting
from cuber.errors import CuberError
from cuber.layers import evaluation_mode


@dataclass(eq=False, repr=False)
class EWC(Method):
    """Hold every weight but the heads' where old tasks left it, the harder the more they depend on it."""

    lam: float = setting(30.0, "how hard old tasks hold on to their weights; lr * lam * Fisher above 2 diverges", low=0)
    anchors: str = setting(
        "each",
        "where weights are held: at what each old task left, or at what the last did (online EWC)",
        choices=("each", "last"),
    )
    gamma: float = setting(1.0, "what each task leaves of its predecessors' hold, with anchors=last", low=0, high=1)
    labels: str = setting(
        "true", "labels that the Fisher is made of: the data's, or drawn from the model", choices=("true", "model")
    )
    samples: int = setting(1000, "training samples that the Fisher is made of", low=1)

    def __post_init__(self) -> None:
        if self.labels == "model" and self.forward is not None:
            raise CuberError("labels='model' needs the model's outputs, which forward= hides: choose labels='true'")
        super().__post_init__()
        self.importance: dict[str, Tensor] = {}
        """A: parameter name -> the Fisher of all old tasks together, for parameters that any of them depends on."""
        self.centre: dict[str, Tensor] = {}
        """m: parameter name -> where its weights are held."""
        self.constant = 0.0
        """c: what remains of the sum over tasks and weights when all weights are at the centre."""
        self._trained: list[str] = []
        """The parameters that the present task was begun with."""

    # The algorithm

    def on_task_begin(self) -> None:
        self._trained = [name for name, _ in self.named_parameters()]
        self._follow()
        if self.labels == "model":
            self._relabelled(self.sample[:1])  # better told now than after the training

    def _follow(self) -> None:
        """Go to the device that the model has gone to."""
        self.importance = {name: values.to(self.device) for name, values in self.importance.items()}
        self.centre = {name: weights.to(self.device) for name, weights in self.centre.items()}

    def before_step(self, optimizer: Optimizer) -> None:
        for name, parameter in self._anchored(optimizer):
            pull = self.lam * self.importance[name] * (parameter.detach() - self.centre[name])
            total = pull if parameter.grad is None else pull + parameter.grad
            parameter.grad = total.to(parameter.dtype)

    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        energies = [
            (self.importance[name] * (parameter.detach() - self.centre[name]).square()).sum()
            for name, parameter in self._anchored(optimizer)
        ]
        return self.lam / 2 * (torch.stack(energies).sum() + self.constant) if energies else None

    def _anchored(self, optimizer: Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
        """What an optimizer trains of the parameters that old tasks depend on."""
        if self.lam and self.importance:
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for name, parameter in self.named_parameters():
                if name in self.importance and id(parameter) in held:
                    yield name, parameter

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        for name in self._trained:
            if not self.model.get_parameter(name).requires_grad:
                raise CuberError(
                    f"end_task: '{name}' was trained in this task and is frozen now, so that nobody can tell what it "
                    "means to the task: set requires_grad back before end_task"
                )
        samples = batches.take(loader, self.samples)
        if self.labels == "model":
            samples = self._relabelled(samples)
        fisher = fisher_diagonal(self.model, lambda batch: self.try_loss(batch, "batches"), samples)
        for name, values in fisher.items():
            if not bool(values.isfinite().all()):
                raise CuberError(
                    f"task {self.tasks}: the gradients for '{name}' are not finite after training: "
                    "lower the learning rate or lam, or look at the inputs"
                )
        self._consolidate(fisher)

    @torch.no_grad()
    def _consolidate(self, fisher: dict[str, Tensor]) -> None:
        """One more spring on every weight, or a stiffer one where the weight is now."""
        if self.anchors == "last":
            self.importance = {name: self.gamma * values for name, values in self.importance.items()}
        for name, values in fisher.items():
            if not bool(values.any()) and name not in self.importance:
                continue
            weights = self.model.get_parameter(name).to(values.dtype, copy=True)
            before = self.importance.get(name, torch.zeros_like(values))
            self.importance[name] = before + values
            if self.anchors == "last" or name not in self.centre:
                self.centre[name] = weights
                continue
            share = torch.where(values > 0, values / self.importance[name], 0.0)
            offset = weights - self.centre[name]
            self.centre[name] = self.centre[name] + share * offset
            self.constant += float((before * share * offset.square()).double().sum())

    @torch.no_grad()
    def _relabelled(self, samples: list[Batch]) -> list[Batch]:
        """The same inputs, with labels drawn from what the model says of them: the same ones whenever it is asked."""
        generator = torch.Generator().manual_seed(self.tasks)
        relabelled = []
        with evaluation_mode(self.model):
            for batch in samples:
                x, y = batches.to(batch, self.device)
                output = self.model(x)
                if y.is_floating_point() or y.shape != output.shape[:1] + output.shape[2:]:
                    raise CuberError(
                        f"labels='model' draws class labels, but outputs of shape {list(output.shape)} have targets of "
                        f"shape {list(y.shape)} and {y.dtype}: choose labels='true'"
                    )
                relabelled.append((x, _draw(output, generator).to(y)))
        return relabelled

    # What is remembered

    def _state(self) -> dict[str, Any]:
        return super()._state() | {
            "importance": dict(self.importance),
            "centre": dict(self.centre),
            "constant": self.constant,
            "trained": self._trained,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.importance, self.centre, self.constant = state["importance"], state["centre"], state["constant"]
        self._follow()
        self._trained = list(state["trained"])

    def memory_bytes(self) -> dict[str, int]:
        return {
            "fisher": sum(values.nbytes for values in self.importance.values()),
            "anchors": sum(weights.nbytes for weights in self.centre.values()),
            **super().memory_bytes(),
        }


def _draw(output: Tensor, generator: torch.Generator) -> Tensor:
    """A class for each sample, with the probabilities that the softmax of the output gives it."""
    cumulative = output.cpu().double().softmax(1).movedim(1, -1).cumsum(-1)
    threshold = torch.rand(cumulative.shape[:-1], generator=generator, dtype=torch.float64)
    return (cumulative[..., :-1] < threshold.unsqueeze(-1)).sum(-1)
