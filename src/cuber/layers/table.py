"""Embeddings, whose inputs choose rows: the rows that a task has used are what it needs of the weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LOOKUPS = (functional.embedding, functional.embedding_bag)
"""Functions of (input, weight, ...) that read the rows which the input names."""


class Table:
    """The weight of embeddings; one that several share is one table.

    Args:
        name: of the first module.
        modules: all embeddings with this weight.
    """

    def __init__(self, name: str, modules: list[nn.Module]) -> None:
        self.name = name
        self.modules = modules

    @property
    def parameter(self) -> nn.Parameter:
        """One row for each word."""
        return self.modules[0].weight  # type: ignore[return-value]


def table_obstacle(module: nn.Module) -> str | None:
    """Return why the rows of a module cannot be protected; empty: they can; None: it is no embedding."""
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return None
    if module.max_norm is not None:
        return f"no rule for {type(module).__name__} with max_norm"
    return f"no rule for {type(module).__name__} with sparse gradients" if module.sparse else ""


class UsedRows(TorchFunctionMode):
    """While open, notes which rows of tables are looked up, also by subclasses that compute more than a lookup."""

    def __init__(self, tables: Iterable[Table]) -> None:
        super().__init__()
        weights = {table.name: table.parameter for table in tables}
        self.rows = {
            name: torch.zeros(len(weight), dtype=torch.bool, device=weight.device) for name, weight in weights.items()
        }
        """Name of a table -> which of its rows were used."""
        self._names = {id(weight): name for name, weight in weights.items()}

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        if function in LOOKUPS:
            indices, weight = (*arguments, *(named[key] for key in ("input", "weight") if key in named))[:2]
            if id(weight) in self._names:
                self._note(self.rows[self._names[id(weight)]], indices)
        return function(*arguments, **named)

    @staticmethod
    def _note(rows: Tensor, indices: Tensor) -> None:
        rows[indices.flatten()] = True
