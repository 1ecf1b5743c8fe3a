"""CUBER (Lin et al., 2022): continual learning with backward knowledge transfer.

In each layer every old task j is in one of three regimes while a new task is learned. ``B_j`` is a basis of the old
task's input subspace, ``w'`` the weight when the new task begins:

1. protect: the weight does not move along ``B_j``;
2. reuse: protected, and the new task learns a scaling of what is there, ``W~ = W + (W B_j) A_j B_j'``;
3. improve: reused, and the weight may move along ``B_j``, held back by a penalty on ``(W - w') B_j``.

GPM has regime 1 only, TRGP regimes 1 and 2: the same algorithm with thresholds that nothing reaches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from cuber.core.averaging import AveragedWeights
from cuber.core.batches import Batch
from cuber.core.optimizer_hooks import layers_with_rates
from cuber.core.pooled import PooledMethod
from cuber.core.settings import setting
from cuber.layers import ProtectedLayer
from cuber.subspace import (
    BACKWARD_TRANSFER,
    FORWARD_TRANSFER,
    Gram,
    LayerMemory,
    Penalty,
    PrunedGradient,
    Regime,
    energy_weights,
    make_penalty,
)

PAPER = {"eps1": 0.5, "eps2": 0.0, "lam": 1.0, "penalty": "norm", "check": "epoch"}
"""The paper's settings, but for ``check``: its algorithm checks at every step. ``CUBER(model, **PAPER)``."""


@dataclass(eq=False, repr=False)
class SubspaceMethod(PooledMethod):
    """Algorithm 1 of the paper. Subclasses choose the regimes by making settings of these constants."""

    eps1, selected, eps2, lam, keep = math.inf, 0, math.inf, 0.0, 0.0

    def on_task_begin(self) -> None:
        """Decide the regimes by the new task's first gradient, and constrain every layer accordingly."""
        gradients = self.mean_gradients(self.sample) if self.tasks and self.selected else {}
        for name, layer in self.layers.items():
            self.memory[name].regimes.append(self.decide_regimes(self.memory[name], gradients.get(name)))
            self.anchor(layer)
            self.constrain(layer)

    def decide_regimes(self, memory: LayerMemory, gradient: Tensor | None) -> dict[int, Regime]:
        """Decide how the new task treats each old task in one layer, by its first gradient there (None: not reached).

        Sufficient projection (definition 1) makes a candidate, the nearest ``selected`` candidates are reused, and
        positive correlation (definition 2) lets a reused task change.
        """
        if gradient is None:
            return {task: Regime() for task in range(self.tasks)}
        ratios = memory.projection_ratios(gradient)
        regimes = {task: Regime(ratio=ratio) for task, ratio in enumerate(ratios)}
        candidates = sorted((task for task in regimes if ratios[task] >= self.eps1), key=lambda task: -ratios[task])
        for task in candidates[: self.selected]:
            regimes[task].cosine = cosine = memory.cosine(task, gradient)
            regimes[task].number = BACKWARD_TRANSFER if self.is_positive(cosine) else FORWARD_TRANSFER
        return regimes

    def is_positive(self, cosine: float | None) -> bool:
        """Return whether an old task agrees, by the cosine between its last gradient and the new task's."""
        return cosine is not None and cosine >= self.eps2

    def make_penalty(self, layer: ProtectedLayer) -> Penalty | None:
        """Return the penalty of the old tasks in regime 3."""
        return make_penalty(self.penalty, self.memory[layer.name], self.anchors[layer.name].start) if self.lam else None

    def before_step(self, optimizer: Optimizer) -> None:
        """Project the gradient of each layer, and add the gradient of the penalty along what may move."""
        for layer, lr in self.optimizers.layers_to_change(optimizer, self.layers.values()):
            layer.require_whole()
            if self.check == "step":
                self.demote(layer, layer.gradient())
            layer.backend.project_gradient()
            if penalty := layer.require_constraint().penalty:
                pull = penalty.gradient(layer.backend.displacement())
                layer.backend.add_to_gradient(pull, penalty.strength(self.lam, lr))

    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        """Return the value of the penalty, for optimizers that step with a closure."""
        values = [
            penalty.strength(self.lam, lr) * penalty.value(layer.backend.displacement())
            for layer, lr in layers_with_rates(optimizer, self.layers.values())
            if (penalty := layer.require_constraint().penalty)
        ]
        return torch.stack(values).sum() if values else None

    def on_epoch_end(self) -> None:
        """Demote old tasks that no longer agree with the new task's gradient on a fixed sample."""
        self.optimizers.restore_protected()
        if self.check == "epoch" and any(memory.in_regime(BACKWARD_TRANSFER) for memory in self.memory.values()):
            for name, gradient in self.mean_gradients(self.sample).items():
                self.demote(self.layers[name], gradient)

    def demote(self, layer: ProtectedLayer, gradient: Tensor) -> None:
        """Move old tasks that disagree with ``gradient`` to regime 2 for the rest of the task."""
        memory, improving = self.memory[layer.name], self.memory[layer.name].in_regime(BACKWARD_TRANSFER)
        cosines = {task: memory.cosine(task, gradient) for task in improving}
        # NaN: the gradient of a step that a GradScaler skips is not finite.
        demoted = [task for task, cosine in cosines.items() if cosine == cosine and not self.is_positive(cosine)]
        for task in demoted:  # in the middle of an epoch, the present one is not counted yet
            memory.regimes[-1][task].demote(self.epoch + (self.check == "step"))
        if demoted:
            self.constrain(layer)

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        """Remember the task's gradient, the subspace of its inputs, their energy there, and its scalings."""
        self.require_trained("end_task")
        gradients = self.mean_gradients(loader) if self.eps2 <= 1 else {}
        self.warn_of_drift()
        self.optimizers.restore_protected()
        grams, scalings = self.input_grams(loader), self.learning
        for name, memory in self.memory.items():
            self.extend_pool(name, grams.get(name))
            self.remember_change(memory, grams.get(name), gradients.get(name))
            memory.scalings.append(scalings.get(name))
            memory.end_task(int(self.for_layer("max_rank", name)))

    def remember_change(self, memory: LayerMemory, gram: Gram | None, gradient: Tensor | None) -> None:
        """Remember what later tasks need to change the present one: the energy of its inputs, and its gradient."""
        basis = memory.basis_of(self.tasks)
        memory.energies.append(energy_weights(gram, basis) if gram and self.penalty == "energy" else None)
        memory.gradients.append(None if gradient is None else PrunedGradient.of(gradient, self.keep))


@dataclass(eq=False, repr=False)
class CUBER(AveragedWeights, SubspaceMethod):
    """Let new tasks improve old ones where their gradients agree.

    Args:
        model: any ``nn.Module``, with a ``MultiHead`` where tasks have a head each.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.
        mask: function of a batch that says which positions are real, or None; default: ``attention_mask``.

    >>> CUBER(nn.Linear(4, 2), **PAPER).eps2  # the settings of the paper
    0.0
    """

    eps1: float = setting(0.5, "share of the gradient that must lie in an old task's subspace (above 1: GPM)", low=0)
    selected: int = setting(2, "how many old tasks a layer may reuse", low=0)
    eps2: float = setting(-0.1, "cosine of old and new gradient above which an old task may change", low=-1)
    lam: float = setting(3.0, "strength of the penalty on change in the subspace of a changing task", low=0)
    penalty: str = setting(
        "energy",
        "on the change: its norm (as printed), its square, or the square weighted by the energy of old inputs",
        choices=("norm", "squared", "energy"),
    )
    check: str = setting(
        "epoch", "when agreement is checked: after each epoch, or on each step's batch", choices=("epoch", "step")
    )
    keep: float = setting(0.1, "fraction of an old task's gradient entries that is kept", low=0, high=1)
