"""Modules with several weights, each of which is a layer of its own: a part of the module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from cuber.layers.linear import LinearRule


class Part(NamedTuple):
    """One weight of a module with several.

    Args:
        module: The module that holds the weight: the composite module itself, or one inside.
        weight: Name of the weight in it.
        bias: Name of the bias; None: it has none of its own.

    >>> cell = nn.GRUCell(4, 3)
    >>> Part(cell, "weight_ih", "bias_ih").weight
    'weight_ih'
    """

    module: nn.Module
    weight: str
    bias: str | None


class Weights(Protocol):
    """What a composite rule computes with."""

    def weight(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Return the weight and bias of a part, differentiable."""

    def is_observed(self, name: str) -> bool:
        """Return whether the inputs of a part are needed."""

    def observe(self, name: str, x: Tensor) -> None:
        """Take the inputs of a part: samples x positions x d, or any number of vectors where samples differ."""


class CompositeRule(ABC):
    """How a type of module with several weights computes. Subclass and ``register`` it, as a rule of a single layer.

    >>> class Sum(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b = (nn.Parameter(torch.randn(3, 4)) for _ in range(2))
    ...     def forward(self, x):
    ...         return x @ self.a.mT + x.square() @ self.b.mT
    >>> class SumRule(CompositeRule):
    ...     @staticmethod
    ...     def parts(module):
    ...         return {"a": Part(module, "a", None), "b": Part(module, "b", None)}
    ...     @staticmethod
    ...     def forward(module, weights, x):
    ...         total = 0
    ...         for name, inputs in {"a": x, "b": x.square()}.items():
    ...             weights.observe(name, inputs)
    ...             total = total + inputs @ weights.weight(name)[0].mT
    ...         return total
    >>> from cuber.layers import register
    >>> register(Sum)(SumRule).__name__
    'SumRule'
    >>> import cuber
    >>> list(cuber.GPM(nn.Sequential(Sum(), nn.Linear(3, 2))).layers)
    ['0.a', '0.b', '1']
    """

    computed_by: tuple[str, ...] = ("forward",)
    """Methods that compute the output; the rule does not hold for a subclass that overrides any."""

    @staticmethod
    def obstacle(module: nn.Module) -> str:
        """Return why the rule does not hold for a module with these options; empty: it does.

        Args:
            module: a module of the registered type.
        """
        return ""

    @staticmethod
    @abstractmethod
    def parts(module: nn.Module) -> dict[str, Part]:
        """Return name -> part; each is a product with the last dimension of its inputs.

        Args:
            module: a module of the registered type.
        """

    @staticmethod
    @abstractmethod
    def forward(module: nn.Module, weights: Weights, *arguments: Any, **named: Any) -> Any:
        """Return the module's output with other weights than its own, and show the inputs of its parts.

        Args:
            module: a module of the registered type.
            weights: ``weights.weight(name)`` is the weight and bias of a part, ``weights.observe(name, x)`` takes its
                inputs, samples x positions x d, and ``weights.is_observed(name)`` says whether they are needed.
            arguments: those of the call.
            named: its keyword arguments.
        """


class PartRule(LinearRule):
    """A part: the module computes more than this layer, so that the layer's output is not known."""

    multiplies = False
    whole = False

    @staticmethod
    def outputs(layer: nn.Module, y: Tensor) -> Tensor | None:
        return None

    @staticmethod
    def dimensions_after_units(layer: nn.Module) -> int:
        return 0
