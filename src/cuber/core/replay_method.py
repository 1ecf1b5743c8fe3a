"""What methods share that replay samples of old tasks: the memory, and the gradient of a batch drawn from it."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.checks import check_dense
from cuber.core.learner import Method
from cuber.core.multi_head_loss import can_mix, mixed_loss
from cuber.core.settings import setting
from cuber.errors import CuberError
from cuber.networks.heads import other_head_parameters
from cuber.replay import Drawn, EpisodicMemory, check_alike, mixture


@dataclass(eq=False, repr=False)
class ReplayMethod(Method):
    """A method that says what becomes of a gradient beside the one of remembered samples: ``combine``.

    Samples are chosen in one pass over a task's data when it has been learnt (``remember``), however many epochs there
    were. They are replayed with the present loss, each with the head and the statistics of its own task.
    """

    memory: int = setting(1000, "samples of old tasks that are kept", low=0)
    replay: int = setting(64, "of these, how many are replayed at each step", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.episodic_memory = EpisodicMemory()
        self._generator = torch.Generator()

    @abstractmethod
    def combine(self, gradients: list[Tensor], replayed: list[Tensor]) -> list[Tensor]:
        """What takes the place of the present task's gradients; a tensor that is handed back as it was stays."""

    @abstractmethod
    def remember(self, loader: Iterable[Batch]) -> None:
        """Choose samples of the task that has been learnt."""

    def before_step(self, optimizer: Optimizer) -> None:
        if len(self.episodic_memory) == 0:
            return
        held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        references = zip(held, self.replayed_gradients(held), strict=True)
        reached = [(p, r) for p, r in references if p.grad is not None or r is not None]
        if reached:
            self._replace_gradients(reached)

    @torch.no_grad()
    def _replace_gradients(self, reached: list[tuple[nn.Parameter, Tensor | None]]) -> None:
        """Parameters that one of the two losses does not depend on have a gradient of 0 there."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p, _ in reached]
        replayed = [torch.zeros_like(p) if r is None else r for p, r in reached]
        for (p, _), before, after in zip(reached, gradients, self.combine(gradients, replayed), strict=True):
            if after is not before:
                p.grad = after if p.grad is None else p.grad.copy_(after)

    def replayed_gradients(self, parameters: list[nn.Parameter]) -> list[Tensor | None]:
        """The gradient of the mean loss over a batch drawn from memory; None for parameters that it does not reach."""
        totals: list[Tensor | None] = [None] * len(parameters)
        with torch.enable_grad(), self._old_tasks_shown():
            for loss in self._losses(self.episodic_memory.draw(self.replay, self._generator)):
                if not loss.requires_grad:
                    continue
                parts = torch.autograd.grad(loss, parameters, allow_unused=True)
                totals = [
                    part if total is None else total if part is None else total + part
                    for total, part in zip(totals, parts, strict=True)
                ]
        return totals

    def _losses(self, drawn: Drawn) -> Iterator[Tensor]:
        """The parts that the mean loss is the sum of; each must be differentiated before the next is asked for."""
        mixed = mixture(drawn) if self._can_mix() else None
        if mixed is not None and self._loss_fn is not None:
            yield mixed_loss(self.model, self._loss_fn, *batches.to(mixed, self.device))
            return
        count = sum(batches.size(batch) for _, batch in drawn)
        for task, batch in drawn:
            self.show_task(task)
            yield self.loss(batch) * (batches.size(batch) / count)

    def _can_mix(self) -> bool:
        """Whether nothing but a sample's own head makes one task's answer different from another's."""
        common = not self.normalization.layers or self.norm_statistics == "batch"
        return common and self.forward is None and can_mix(self.model)

    @contextmanager
    def _old_tasks_shown(self) -> Iterator[None]:
        """While open, any task may be shown: statistics do not move, and the present task's are back afterwards."""
        shown, statistics = self.shown_task, self.normalization.statistics()
        moving = [layer for layer in self.normalization.layers.values() if layer.training]
        for layer in moving:
            layer.training = False
        try:
            yield
        finally:
            for layer in moving:
                layer.training = True
            self.show_task(shown)
            self.normalization.restore(statistics)

    def on_task_begin(self) -> None:
        if self.tasks == 0:
            # Seeded by the user's own seed, without drawing from it; and not the same numbers as those drawn from it.
            self._generator.manual_seed(random.Random(f"replay {torch.initial_seed()}").getrandbits(63))
        if self.memory:
            check_dense(self.model, type(self).__name__)
            for batch in self.sample:
                check_alike(self.sample[0], batch)

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        if self.memory:
            self.remember(loader)

    def freeze_parameters(self) -> None:
        """The heads of tasks that are replayed train too."""
        self.freezer.thaw()
        self.freezer.freeze(other_head_parameters(self.model, {self.tasks, *self.episodic_memory.sizes}))

    def check_optimizer(self, optimizer: Optimizer) -> None:
        super().check_optimizer(optimizer)
        if self.memory and isinstance(optimizer, LBFGS):
            raise CuberError(
                f"{type(self).__name__} replays other samples at every step, which LBFGS cannot follow: "
                "use another optimizer"
            )

    def _state(self) -> dict[str, Any]:
        return super()._state() | {
            "memory": self.memory,
            "episodes": self.episodic_memory.state(),
            "generator": self._generator.get_state(),
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        if state["memory"] != self.memory:
            raise CuberError(
                f"this state is of a memory of {state['memory']} samples, not {self.memory}: "
                f"make the learner with memory={state['memory']}"
            )

    def _restore(self, state: dict[str, Any]) -> None:
        self.episodic_memory = EpisodicMemory.restored(state["episodes"])
        self._generator.set_state(state["generator"].cpu())

    def memory_bytes(self) -> dict[str, int]:
        return {"samples": self.episodic_memory.nbytes, **super().memory_bytes()}

    def describe(self) -> list[str]:
        sizes = self.episodic_memory.sizes.items()
        return [f"{count} samples of task {task} in memory" for task, count in sizes]
