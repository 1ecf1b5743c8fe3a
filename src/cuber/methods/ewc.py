"""Elastic Weight Consolidation (Kirkpatrick et al., 2017): penalize changes of weights that old tasks depend on.

After each task j, the diagonal of the Fisher information F_j measures how much the task depends on each weight theta_i.
Later tasks are learned with ``lam/2 sum_j sum_i F_j,i (theta_i - theta*_j,i)^2`` added to the loss.

The terms of all tasks are one quadratic function: ``sum_j F_j (theta - theta*_j)^2 = A (theta - m)^2 + c``, where A is
the sum of the F_j and m the mean of the theta*_j weighted by them. Memory and time do not grow with the tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.core import batches, distributed
from cuber.core.batches import Batch
from cuber.core.fisher import fisher_diagonal
from cuber.core.learner import Method
from cuber.core.optimizer_hooks import parameters_of
from cuber.core.per_task import norm_parameters_setting, vectors
from cuber.core.settings import setting
from cuber.errors import CuberError
from cuber.layers import evaluation_mode, scan
from cuber.networks.heads import head_parameters
from cuber.subspace import in_float64


@dataclass(eq=False, repr=False)
class EWC(Method):
    """Pull weights to their values in old tasks, by how much these depend on them; not heads and what is per task.

    Args:
        model: any ``nn.Module``, with a ``MultiHead`` where tasks have a head each.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.

    >>> learner = EWC(nn.Linear(4, 2), lam=100, anchors="last")  # online EWC
    """

    remembered: ClassVar[dict[str, Any]] = {
        "importance": dict[str, Tensor],
        "center": dict[str, Tensor],
        "constant": float,
    }
    in_task: ClassVar[dict[str, Any]] = {"trained": list[str]}
    kinds: ClassVar[dict[str, str]] = {"importance": "fisher", "center": "anchors"}

    norm_parameters: str = norm_parameters_setting()
    lam: float = setting(30.0, "strength of the penalty; training diverges where lr * lam * Fisher is above 2", low=0)
    anchors: str = setting(
        "each",
        "what weights are pulled to: their values after each old task, or after the last one (online EWC)",
        choices=("each", "last"),
    )
    gamma: float = setting(1.0, "factor on the Fisher of old tasks after each task, with anchors=last", low=0, high=1)
    labels: str = setting(
        "true", "labels for the Fisher: those of the data, or drawn from the model", choices=("true", "model")
    )
    samples: int = setting(1000, "training samples that the Fisher is computed from", low=1)

    def __post_init__(self) -> None:
        if self.labels == "model" and self.forward is not None:
            raise CuberError("labels='model' needs the model's outputs, which forward= hides: choose labels='true'")
        super().__post_init__()
        self.importance: dict[str, Tensor] = {}
        """A: parameter name -> sum of the Fisher of all old tasks, for parameters that any of them depends on."""
        self.center: dict[str, Tensor] = {}
        """m: parameter name -> what its weights are pulled to."""
        self.constant = 0.0
        """c, summed over all weights."""
        self.trained: list[str] = []
        """Names of the parameters that the present task began to train."""

    def on_task_begin(self) -> None:
        own = set(self.per_task_parameters())
        self.trained = [name for name, _ in self.named_parameters() if name not in own]
        if self.labels == "model":
            self.draw_labels(self.sample[:1])  # raise errors now, not after training

    def per_task_parameters(self) -> list[str]:
        uncovered = scan(self.model, exempt=head_parameters(self.model)).uncovered
        return vectors(self.model, uncovered) if self.norm_parameters == "task" else []

    def unprotected_parameters(self) -> dict[str, str]:
        return {}

    def before_step(self, optimizer: Optimizer) -> None:
        """Add the gradient of the penalty, ``lam A (theta - m)``."""
        for name, parameter in self.penalized(optimizer):
            pull = self.lam * self.importance[name] * (parameter.detach() - self.center[name])
            total = pull if parameter.grad is None else pull + parameter.grad
            parameter.grad = total.to(parameter.dtype)

    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        """Return the penalty, ``lam/2 (A (theta - m)^2 + c)``."""
        energies = [
            (self.importance[name] * (parameter.detach() - self.center[name]).square()).sum()
            for name, parameter in self.penalized(optimizer)
        ]
        return self.lam / 2 * (torch.stack(energies).sum() + self.constant) if energies else None

    def penalized(self, optimizer: Optimizer) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters of an optimizer that old tasks depend on, with names."""
        if not self.lam or not self.importance:
            return []
        held, own = set(parameters_of(optimizer)), self.normalization.per_task
        return [
            (name, p)
            for name, p in self.named_parameters()
            if name in self.importance and name not in own and p in held
        ]

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        for name in self.trained:
            if not self.model.get_parameter(name).requires_grad:
                raise CuberError(
                    f"end_task: '{name}' was trained in this task and is frozen now, so that its Fisher information "
                    "cannot be computed: set requires_grad back before end_task"
                )
        samples = batches.take(loader, self.samples)
        if self.labels == "model":
            samples = self.draw_labels(samples)
        own = self.normalization.parameters().values()
        fisher = fisher_diagonal(self.model, lambda batch: self.try_loss(batch, "batches"), samples, own)
        for name, values in fisher.items():
            if not bool(values.isfinite().all()):
                raise CuberError(
                    f"task {self.tasks}: the gradients for '{name}' are not finite after training: "
                    "lower the learning rate or lam, or check the inputs"
                )
        self.consolidate(fisher)

    @torch.no_grad()
    def consolidate(self, fisher: dict[str, Tensor]) -> None:
        """Add the quadratic term of the task that was learned, at the present weights."""
        if self.anchors == "last":
            self.importance = {name: self.gamma * values for name, values in self.importance.items()}
        for name, values in fisher.items():
            if not bool(values.any()) and name not in self.importance:
                continue
            weights = self.model.get_parameter(name).to(values.dtype, copy=True)
            before = self.importance.get(name, torch.zeros_like(values))
            self.importance[name] = before + values
            if self.anchors == "last" or name not in self.center:
                self.center[name] = weights
                continue
            share = torch.where(values > 0, values / self.importance[name], 0.0)
            offset = weights - self.center[name]
            self.center[name] = self.center[name] + share * offset
            self.constant += float(in_float64(before * share * offset.square()).sum())

    @torch.no_grad()
    def draw_labels(self, samples: list[Batch]) -> list[Batch]:
        """Return the same inputs with labels drawn from the model's predictions, the same for each call in a task."""
        seed = self.tasks * distributed.processes() + distributed.rank()  # not the same numbers for other samples
        generator = torch.Generator().manual_seed(seed)
        drawn = []
        with evaluation_mode(self.model):
            for batch in samples:
                x, y = batches.to(batch, self.device)
                output = self.model(x)
                if y.is_floating_point() or y.shape != output.shape[:1] + output.shape[2:]:
                    raise CuberError(
                        f"labels='model' draws class labels, but outputs of shape {list(output.shape)} have targets of "
                        f"shape {list(y.shape)} and {y.dtype}: choose labels='true'"
                    )
                cumulative = output.cpu().double().softmax(1).movedim(1, -1).cumsum(-1)
                threshold = torch.rand(cumulative.shape[:-1], generator=generator, dtype=torch.float64)
                drawn.append((x, (cumulative[..., :-1] < threshold.unsqueeze(-1)).sum(-1).to(y)))
        return drawn
