"""Methods that keep an average of the weights along the way of a task, instead of the last ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from cuber.core import distributed
from cuber.core.batches import Batch
from cuber.core.learner import Method
from cuber.core.settings import setting
from cuber.errors import CuberError


@dataclass(eq=False, repr=False)
class AveragedWeights(Method):
    """A method that may average all that a task trains: the noise of single steps cancels out.

    Training does not see the average. It is what ``as_task`` shows and snapshots copy, and what ``end_task`` keeps. Old
    tasks are protected as before: where each of several weights agrees with w' along a direction, their mean does too.
    """

    in_task: ClassVar[dict[str, Any]] = {"averages": dict[str, Tensor], "averaged_steps": int}

    ema: float = setting(
        0.0, "epochs over which weights are averaged, by an exponential mean; a task keeps it (0: last weights)", low=0
    )

    def __post_init__(self) -> None:
        self.averages: dict[str, Tensor] = {}
        """Parameter, or buffer of a normalization layer -> its average in the present task."""
        self.averaged_steps = 0
        super().__post_init__()

    def try_sample(self) -> None:
        if self.ema and self.steps_per_epoch is None:
            raise CuberError(
                "ema is a number of epochs, but the loader does not say how many batches it has: "
                "call begin_task(..., steps=)"
            )
        super().try_sample()

    @torch.no_grad()
    def after_step(self, optimizer: Optimizer) -> None:
        """Average over all steps so far, and then over the last ``ema`` epochs; call ``super()`` first."""
        super().after_step(optimizer)
        if not self.ema or not self.optimizers.is_last(optimizer):
            return
        self.averaged_steps += 1
        window = max(1.0, self.ema * (self.steps_per_epoch or 1))
        share = 1 / min(self.averaged_steps, window)
        for name, tensor in self._averaged_tensors():
            # Half precision would round small shares of a change to nothing.
            present = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
            average = self.averages.get(name)
            self.averages[name] = present.clone() if average is None else average.to(present).lerp_(present, share)

    @contextmanager
    def weights_to_keep(self) -> Iterator[None]:
        """While open, the model has the averages for weights."""
        if not self.ema or not self.averages:
            yield
            return
        before = [(tensor, tensor.detach().clone()) for _, tensor in self._averaged_tensors()]
        self._put_averages()
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in before:
                    tensor.copy_(value)

    def observe_task(self, loader: Iterable[Batch]) -> None:
        """Keep the averages: from here on they are the weights."""
        if self.ema and self.averages:
            self._put_averages()
            distributed.average_(self.normalization.buffers())
            self.on_weights_restored()
        super().observe_task(loader)

    def on_weights_restored(self) -> None:
        """Begin a new average."""
        self.averages, self.averaged_steps = {}, 0
        super().on_weights_restored()

    def on_task_left(self) -> None:
        self.averages, self.averaged_steps = {}, 0
        super().on_task_left()

    @torch.no_grad()
    def _put_averages(self) -> None:
        for name, tensor in self._averaged_tensors():
            if name in self.averages:
                tensor.copy_(self.averages[name])
        # The mean of what a parametrized weight is computed from does not give the mean of the weights.
        self.optimizers.restore_protected(only_drifted=True)

    def _averaged_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.named_parameters()
        for name, buffer in self.normalization.named_buffers():
            if buffer.is_floating_point():
                yield f"buffer {name}", buffer
