"""Methods that replay samples of old tasks: their memory, and the gradient of a batch drawn from it."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from cuber.core import batches, distributed
from cuber.core.batches import Batch
from cuber.core.learner import Method
from cuber.core.optimizer_hooks import parameters_of
from cuber.core.settings import setting
from cuber.errors import CuberError
from cuber.layers import evaluation_mode
from cuber.networks.heads import can_mix, mixed_loss, other_head_parameters
from cuber.replay import Drawn, EpisodicMemory, check_alike, mixture


@dataclass(eq=False, repr=False)
class ReplayMethod(Method):
    """A method that combines the present gradient with that of samples remembered at the end of old tasks.

    They are replayed with the present loss function, each with the head and statistics of its own task.

    Args:
        model: any ``nn.Module``; it stays the same object.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.

    >>> import cuber
    >>> class HalfER(cuber.ER):  # ER is a ReplayMethod: it remembers a random sample
    ...     "The mean of the present gradient and that of replayed samples."
    ...     def combine(self, gradients, replayed):
    ...         return [(new + old) / 2 for new, old in zip(gradients, replayed)]
    ...     def remember(self, loader):
    ...         super().remember(loader)
    >>> HalfER(nn.Linear(4, 2), memory=100).combine([torch.ones(2)], [torch.zeros(2)])
    [tensor([0.5000, 0.5000])]
    """

    remembered: ClassVar[dict[str, Any]] = {
        "memory": int,
        "episodic_memory": EpisodicMemory,
        "generator": torch.Generator,
    }
    kinds: ClassVar[dict[str, str]] = {"episodic_memory": "samples"}

    memory: int = setting(1000, "samples of old tasks that are kept", low=0)
    replay: int = setting(64, "samples that are replayed at each step", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.episodic_memory = EpisodicMemory()
        self.generator = torch.Generator()

    @abstractmethod
    def combine(self, gradients: list[Tensor], replayed: list[Tensor]) -> list[Tensor]:
        """Return the gradients to step with.

        Args:
            gradients: of the present task, one for each parameter; return the same tensor to leave it unchanged.
            replayed: of the samples drawn from memory, for the same parameters.
        """

    @abstractmethod
    def remember(self, loader: Iterable[Batch]) -> None:
        """Choose samples of the task that was learned: set ``episodic_memory``.

        Args:
            loader: the task's training data.
        """

    def before_step(self, optimizer: Optimizer) -> None:
        if len(self.episodic_memory) == 0:
            return
        held = [parameter for parameter in parameters_of(optimizer) if parameter.requires_grad]
        pairs = zip(held, self.replayed_gradients(held), strict=True)
        reached = [(p, r) for p, r in pairs if p.grad is not None or r is not None]
        if not reached:
            return
        with torch.no_grad():  # a loss that does not depend on a parameter has gradient 0 there
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p, _ in reached]
            replayed = [torch.zeros_like(p) if r is None else r for p, r in reached]
            for (p, _), before, after in zip(reached, gradients, self.combine(gradients, replayed), strict=True):
                if after is not before:
                    p.grad = after if p.grad is None else p.grad.copy_(after)

    def replayed_gradients(self, parameters: list[nn.Parameter]) -> list[Tensor | None]:
        """Return the gradients of the mean loss of a batch drawn from memory; None for parameters it does not reach.

        Of several processes all draw the same samples, and each computes with its part of them.
        """
        totals: list[Tensor | None] = [None] * len(parameters)
        norms = nn.ModuleList(self.normalization.layers.values())  # in evaluation mode, their statistics do not change
        with torch.enable_grad(), self.as_task(self.shown_task), evaluation_mode(norms):
            drawn = self.episodic_memory.draw(self.replay, self.generator)
            own = self._own_part(drawn)
            for loss in self._losses(own):
                if distributed.is_active():
                    loss = loss * (_count(own) / _count(drawn))
                if not loss.requires_grad:
                    continue
                parts = torch.autograd.grad(loss, parameters, allow_unused=True)
                totals = [
                    part if total is None else total if part is None else total + part
                    for total, part in zip(totals, parts, strict=True)
                ]
        return distributed.sum_present(totals, parameters)

    def _own_part(self, drawn: Drawn) -> Drawn:
        parts = [(task, batch, distributed.share(batches.size(batch))) for task, batch in drawn]
        return [(task, batches.part(batch, own.part)) for task, batch, own in parts if own.weight]

    def _losses(self, drawn: Drawn) -> Iterator[Tensor]:
        """Iterate over the terms of the mean loss; differentiate each before the next."""
        # One forward pass serves all tasks where they differ in their heads alone.
        alike = not self.normalization.layers or self.norm_statistics == "batch"
        if alike and self.forward is None and can_mix(self.model) and (mixed := mixture(drawn)) is not None:
            yield mixed_loss(self.model, self.loss_fn, *batches.to(mixed, self.device))
            return
        count = _count(drawn)
        for task, batch in drawn:
            self.show_task(task)
            yield self.loss(batch) * (batches.size(batch) / count)

    def on_task_begin(self) -> None:
        if self.tasks == 0:
            # Derived from the user's seed without drawing from the user's generator.
            seed = random.Random(f"replay {torch.initial_seed()}").getrandbits(63)
            self.generator.manual_seed(distributed.broadcast(seed))
        if self.memory:
            self._check_dense()
            for batch in self.sample:
                check_alike(self.sample[0], batch)

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        if self.memory:
            self.remember(loader)

    def freeze_parameters(self) -> None:
        """Freeze the heads of other tasks, except of those that are replayed."""
        self.freezer.freeze(other_head_parameters(self.model, {self.tasks, *self.episodic_memory.sizes}))

    def check_optimizer(self, optimizer: Optimizer) -> None:
        super().check_optimizer(optimizer)
        if self.memory and isinstance(optimizer, LBFGS):
            raise CuberError(
                f"{type(self).__name__} replays other samples at every step, which LBFGS cannot follow: "
                "use another optimizer"
            )

    def check_state(self, remembered: dict[str, Any]) -> None:
        if remembered["memory"] != self.memory:
            raise CuberError(
                f"this state is of a memory of {remembered['memory']} samples, not {self.memory}: "
                f"make the learner with memory={remembered['memory']}"
            )

    def describe(self) -> list[str]:
        return [f"{count} samples of task {task} in memory" for task, count in self.episodic_memory.sizes.items()]

    def _check_dense(self) -> None:
        """Raise if a trained layer has sparse gradients, which cannot be combined with others."""
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
                raise CuberError(
                    f"{type(self).__name__} mixes gradients, and those of '{name}' are sparse: make that layer with "
                    "sparse=False"
                )


def _count(drawn: Drawn) -> int:
    return sum(batches.size(batch) for _, batch in drawn)
