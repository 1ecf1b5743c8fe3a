"""What a layer type must tell us, and who has told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from cuber.errors import CuberError
from cuber.layers.patches import Patches


class Rule(ABC):
    """How one type of layer sees its input. Subclass it, register it, and the type is protected.

    The layer's ``weight``, as an ``out x d`` matrix, must act on the vectors that ``vectors`` returns; a ``bias``
    is taken care of elsewhere, as the weight of one more input that is always 1.
    """

    computed_by: tuple[str, ...] = ("forward",)
    """The methods that a layer computes with: one that overrides any of them is not what the rule is for."""
    multiplies = False
    """True if the layer is nothing but a product with its last dimension, so that inputs can be scaled instead."""

    @staticmethod
    @abstractmethod
    def vectors(layer: nn.Module, x: Tensor) -> Tensor:
        """All input vectors in ``x``, as the rows of an ``m x d`` matrix."""

    @staticmethod
    def patches(layer: nn.Module, x: Tensor) -> Patches | None:
        """The same vectors as patches of an array, if they are: sums over them are then found faster.

        A rule that overrides ``vectors`` of one that has these must override them too.
        """
        return None

    @staticmethod
    @abstractmethod
    def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's forward pass, with another weight and bias than its own."""

    @staticmethod
    def outputs(layer: nn.Module, y: Tensor) -> Tensor | None:
        """The output, or its gradient, as rows beside those of ``vectors``; None where that cannot be told.

        Rows come sample by sample. With groups, a sample's come group by group, each with the outputs of its group.
        """
        return None

    @staticmethod
    def matrix(weight: Tensor) -> Tensor:
        """The weight as ``out x d``."""
        return weight.flatten(1)

    @staticmethod
    def weight(matrix: Tensor, like: Tensor) -> Tensor:
        """The inverse of ``matrix``."""
        return matrix.reshape(like.shape)

    @staticmethod
    def dimensions_after_units(layer: nn.Module) -> int:
        """How many dimensions of the layer's output come after the one that counts its output units."""
        return cast(Tensor, layer.weight).dim() - 2


RULES: dict[type[nn.Module], type[Rule]] = {}


def register(*layer_types: type[nn.Module]) -> Callable[[type[Rule]], type[Rule]]:
    """Class decorator: this rule covers these layer types."""

    def enter(rule: type[Rule]) -> type[Rule]:
        if "vectors" in vars(rule) and "patches" not in vars(rule) and rule.patches is not Rule.patches:
            raise CuberError(
                f"{rule.__name__} has vectors of its own but patches of another rule: override patches too, "
                "with a function that returns None if they are no patches"
            )
        for layer_type in layer_types:
            RULES[layer_type] = rule
        return rule

    return enter


def rule_for(module: nn.Module) -> type[Rule] | None:
    """The rule that covers a module; a subclass is covered as long as it computes what its parent computes."""
    for layer_type, rule in RULES.items():
        if isinstance(module, layer_type) and all(
            getattr(type(module), method) is getattr(layer_type, method) for method in rule.computed_by
        ):
            return rule
    return None
