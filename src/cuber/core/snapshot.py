"""The best weights so far, for whoever stops early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cuber.errors import CuberError

if TYPE_CHECKING:
    from cuber.core.learner import Method


class Snapshot:
    """A copy of all that training a task changes, which can be put back in the same task."""

    def __init__(self, learner: Method) -> None:
        self._learner = learner
        self._task = learner.tasks, learner.task
        self._tensors = self._changing()
        self._copies = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}

    @torch.no_grad()
    def take(self) -> None:
        """Copy the present state in place of the one before."""
        self._require_same_task("take")
        # By name: a model may put another tensor in a buffer's place, and somebody may thaw a layer.
        self._tensors |= self._changing()
        self._copies = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Put the copied state back."""
        self._require_same_task("restore")
        present = self._tensors | self._changing()
        for name, copy in self._copies.items():
            present[name].copy_(copy)
        self._learner.on_weights_restored()

    def _changing(self) -> dict[str, Tensor]:
        buffers = {f"buffer {name}": buffer for name, buffer in self._learner.model.named_buffers()}
        return {**dict(self._learner.named_parameters()), **buffers}

    def _require_same_task(self, verb: str) -> None:
        """Another task trains other things (its own scalings, say), and has old ones to protect."""
        if (self._learner.tasks, self._learner.task) != self._task:
            raise CuberError(
                f"{verb}: this snapshot is of another task: take one with learner.snapshot() after begin_task, in each "
                "task, and restore it before end_task"
            )

    def state(self) -> list[Tensor]:
        """The copies, to be saved."""
        return list(self._copies.values())

    def load(self, copies: list[Tensor]) -> None:
        """Take saved copies in place of ours."""
        for copy, saved in zip(self._copies.values(), copies, strict=True):
            copy.copy_(saved)
