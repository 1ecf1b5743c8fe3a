"""A copy of the weights in the middle of a task, for early stopping."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cuber.core.misuse import require_no_view
from cuber.errors import CuberError

if TYPE_CHECKING:
    from cuber.core.learner import Method


class Snapshot:
    """A copy of all that training a task changes, to be restored in the same task.

    Args:
        learner: whose ``snapshot()`` makes it.

    >>> import cuber
    >>> model, loss_fn = nn.Linear(4, 2), nn.functional.mse_loss
    >>> learner = cuber.GPM(model)
    >>> learner.begin_task([(torch.eye(4), torch.ones(4, 2))], loss_fn)
    >>> best = learner.snapshot()
    >>> with torch.no_grad():
    ...     _ = model.weight.fill_(1.0)
    >>> best.take()  # these weights instead
    >>> with torch.no_grad():
    ...     _ = model.weight.fill_(2.0)
    >>> best.restore()
    >>> model.weight.max().item()
    1.0
    """

    def __init__(self, learner: Method) -> None:
        self._learner = learner
        self._task = learner.tasks, learner.task
        self._tensors: dict[str, Tensor] = {}
        self.take()

    def take(self) -> None:
        """Copy the present state in place of the one before; not while ``as_task`` shows a task learned before."""
        learner = self._learner
        if learner.shown_task is not None and learner.shown_task < learner.tasks:
            require_no_view(learner, "taking a snapshot")
        # Tensors that were frozen since, or buffers that the model has replaced, are kept by name.
        self._tensors |= self._changing("take")
        with self._learner.weights_to_keep():
            self._copies = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Copy the state back into the model; outside of ``as_task``."""
        require_no_view(self._learner, "restoring a snapshot")
        present = self._tensors | self._changing("restore")
        for name, copy in self._copies.items():
            present[name].copy_(copy)
        self._learner.on_weights_restored()

    def _changing(self, verb: str) -> dict[str, Tensor]:
        if (self._learner.tasks, self._learner.task) != self._task:
            raise CuberError(
                f"{verb}: this snapshot is of another task: take one with learner.snapshot() after begin_task, in each "
                "task, and restore it before end_task"
            )
        buffers = {f"buffer {name}": buffer for name, buffer in self._learner.model.named_buffers()}
        return {**dict(self._learner.named_parameters()), **buffers}

    def state(self) -> list[Tensor]:
        """Return the copies, to be saved."""
        return list(self._copies.values())

    def load(self, copies: list[Tensor]) -> None:
        """Replace the copies by saved ones."""
        for copy, saved in zip(self._copies.values(), copies, strict=True):
            copy.copy_(saved)
