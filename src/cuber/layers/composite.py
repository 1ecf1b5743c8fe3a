"""Modules with several weights, each of which is a layer of its own: a part of the module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from cuber.layers.linear import LinearRule


class Part(NamedTuple):
    """One weight of a module with several."""

    module: nn.Module
    """The one that holds the weight: the module itself, or one inside."""
    weight: str
    """Name of the weight in it."""
    bias: str | None
    """Name of the bias; None: it has none of its own."""


class Weights(Protocol):
    """What a composite rule computes with."""

    def weight(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Return the weight and bias of a part, differentiable."""

    def is_observed(self, name: str) -> bool:
        """Return whether the inputs of a part are needed."""

    def observe(self, name: str, x: Tensor) -> None:
        """Take the inputs of a part: samples x positions x d, or any number of vectors where samples differ."""


class CompositeRule(ABC):
    """How a type of module with several weights computes. Subclass and ``register`` it, as a rule of a single layer."""

    computed_by: tuple[str, ...] = ("forward",)
    """Methods that compute the output: the rule does not hold for a subclass that overrides any."""

    @staticmethod
    def obstacle(module: nn.Module) -> str:
        """Return why the rule does not hold for a module with these options; empty: it does."""
        return ""

    @staticmethod
    @abstractmethod
    def parts(module: nn.Module) -> dict[str, Part]:
        """Return name -> part; each is a product with the last dimension of its inputs."""

    @staticmethod
    @abstractmethod
    def forward(module: nn.Module, weights: Weights, *arguments: Any, **named: Any) -> Any:
        """Return the module's output with other weights than its own, and show the inputs of its parts."""


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
