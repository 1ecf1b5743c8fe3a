"""Embeddings, whose inputs choose rows: the rows that a task has used are what it needs of the weight."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
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
    """While open, notes which rows of tables are looked up, also by subclasses that compute more than a lookup.

    Modules that were compiled in place run as they are written meanwhile: a compiler cannot trace this.
    """

    def __init__(self, tables: Iterable[Table]) -> None:
        super().__init__()
        weights = {table.name: table.parameter for table in tables}
        self.rows = {
            name: torch.zeros(len(weight), dtype=torch.bool, device=weight.device) for name, weight in weights.items()
        }
        """Name of a table -> which of its rows were used."""
        self.real: Tensor | None = None
        """Which positions of the present batch are real, samples x positions; None: all. The others use no row."""
        self.is_masked = False
        """Whether ``real`` had the shape of a lookup."""
        self._names = {id(weight): name for name, weight in weights.items()}
        self._compiler = ExitStack()

    def __enter__(self) -> UsedRows:
        if "torch._dynamo" in sys.modules:  # else nothing is compiled
            self._compiler.enter_context(torch.compiler.set_stance("force_eager"))
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._compiler.close()

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
                if function is functional.embedding and self.real is not None:  # bags add up all that they are given
                    found = _at_real_positions(indices, self.real.to(indices.device))
                    self.is_masked |= found is not indices
                    indices = found
                self.rows[self._names[id(weight)]][indices.flatten()] = True
        return function(*arguments, **named)


def _at_real_positions(indices: Tensor, real: Tensor) -> Tensor:
    """Return the indices at real positions; all, where the shape is not one of positions.

    Args:
        indices: samples x positions or these in one dimension; or positions, the same for all samples, with or without
            a first dimension of 1.
        real: samples x positions.
    """
    samples, positions = real.shape
    if indices.shape == real.shape or (indices.shape == (real.numel(),) and positions > 1):
        return indices[real.view(indices.shape)]
    if indices.shape == (1, positions) or (indices.shape == (positions,) and positions != samples):
        return indices[..., real.any(0)]
    return indices
