"""Rows of embeddings: those that old tasks have used stay as they are, the others are free.

The inputs of an embedding are words, each a unit vector, so that the subspace of a task is spanned by the words that it
has. A basis of it would be as large as the embedding: the rows are remembered instead, one bit for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.core import distributed
from cuber.layers import Table


@dataclass
class HeldRows:
    """Rows of an embedding that must not change in the present task."""

    index: Tensor
    values: Tensor


class RowMemory:
    """The embeddings of a model, and the rows that old tasks need."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        """Name of an embedding -> its weight."""
        self.used: dict[str, Tensor] = {}
        """Name of an embedding -> which of its rows old tasks have used."""
        self.held: dict[str, HeldRows] = {}
        """Name of an embedding -> these rows as they were when the present task began."""

    def add(self, used: dict[str, Tensor]) -> None:
        """Remember rows that a task has used, in any process."""
        names = list(used)
        counts = distributed.sum_tensors([used[name].to(torch.float32) for name in names])
        for name, count in zip(names, counts, strict=True):
            self.used[name] = self.used.get(name, False) | (count > 0)

    def hold(self) -> None:
        """Keep the rows of old tasks where they are, until ``release``."""
        self.held = {}
        for name in self.used.keys() & self.tables.keys():
            weight = self.tables[name].parameter.detach()
            index = self.used[name].to(weight.device).nonzero().flatten()
            self.held[name] = HeldRows(index, weight[index])

    def release(self) -> None:
        """Let all rows go."""
        self.held = {}

    def mask_gradients(self) -> None:
        """Remove the gradients of rows that are held."""
        for name, rows in self.held.items():
            gradient = self.tables[name].parameter.grad
            if gradient is not None:
                gradient.index_fill_(0, rows.index.to(gradient.device), 0)

    @torch.no_grad()
    def restore(self) -> None:
        """Move rows back that an optimizer has moved without a gradient: momentum and decay do."""
        for name, rows in self.held.items():
            weight = self.tables[name].parameter
            weight.index_copy_(0, rows.index.to(weight.device), rows.values.to(weight))

    def describe(self) -> list[str]:
        """Return a line for each embedding."""
        return [
            f"{name}: {int(self.used[name].sum()) if name in self.used else 0:,} of {len(table.parameter):,} "
            "rows protected"
            for name, table in self.tables.items()
        ]

    def tied_to(self, parameters: Iterable[Tensor]) -> set[str]:
        """Return the embeddings whose weight is one of ``parameters``."""
        others = set(map(id, parameters))
        return {name for name, table in self.tables.items() if id(table.parameter) in others}
