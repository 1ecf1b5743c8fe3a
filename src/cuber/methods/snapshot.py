"""The best weights so far, for whoever stops early."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cuber.errors import CuberError

if TYPE_CHECKING:
    from cuber.methods.method import Method


class Snapshot:
    """A copy of the tensors that training changes, which can be put back in the same task."""

    def __init__(self, learner: Method, restored: Callable[[], None]) -> None:
        self._learner = learner
        self._restored = restored
        """Told when the copied state has been put back."""
        self._task = learner.tasks, learner.task
        self._tensors = self._changing()
        self._copies = [tensor.detach().clone() for tensor in self._tensors]

    @torch.no_grad()
    def take(self) -> None:
        """Copy the present state in place of the one before."""
        self._require_same_task("take")
        for copy, tensor in zip(self._copies, self._tensors, strict=True):
            copy.copy_(tensor)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the copied state back."""
        self._require_same_task("restore")
        for copy, tensor in zip(self._copies, self._tensors, strict=True):
            tensor.copy_(copy)
        self._restored()

    def _require_same_task(self, verb: str) -> None:
        """Another task trains other things (its own scalings, say), and has old ones to protect."""
        same = (self._learner.tasks, self._learner.task) == self._task
        if not same or not set(map(id, self._changing())) <= set(map(id, self._tensors)):
            raise CuberError(
                f"{verb}: this snapshot is of what another task trains: take one with learner.snapshot() after "
                "begin_task, in each task, and restore it before end_task"
            )

    def _changing(self) -> list[Tensor]:
        """What training the present task changes."""
        return [*self._learner.parameters(), *self._learner.model.buffers()]

    def state(self) -> list[Tensor]:
        """The copies, to be saved."""
        return list(self._copies)

    def load(self, copies: list[Tensor]) -> None:
        """Take saved copies in place of ours."""
        for copy, saved in zip(self._copies, copies, strict=True):
            copy.copy_(saved)
