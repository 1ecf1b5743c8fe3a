"""The best weights so far, for whoever stops early."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


class Snapshot:
    """A copy of tensors that training changes, which can be put back."""

    def __init__(self, tensors: Iterable[Tensor], restored: Callable[[], None]) -> None:
        self._tensors = list(tensors)
        self._restored = restored
        """Told when the copied state has been put back."""
        self._copies = [tensor.detach().clone() for tensor in self._tensors]

    @torch.no_grad()
    def take(self) -> None:
        """Copy the present state in place of the one before."""
        for copy, tensor in zip(self._copies, self._tensors, strict=True):
            copy.copy_(tensor)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the copied state back."""
        for copy, tensor in zip(self._copies, self._tensors, strict=True):
            tensor.copy_(copy)
        self._restored()

    def state(self) -> list[Tensor]:
        """The copies, to be saved."""
        return list(self._copies)

    def load(self, copies: list[Tensor]) -> None:
        """Take saved copies in place of ours."""
        for copy, saved in zip(self._copies, copies, strict=True):
            copy.copy_(saved)
