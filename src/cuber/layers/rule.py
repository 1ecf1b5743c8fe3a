"""Rules, which describe a type of layer as a matrix that acts on vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from torch import Tensor, nn


class Rule(ABC):
    """How one type of layer computes. Subclass and :func:`register` it to protect layers of this type.

    The layer's ``weight``, as an out x d matrix, must act on the vectors that ``vectors`` returns. Its ``bias`` is
    treated elsewhere, as the weight of another input that is always 1.
    """

    computed_by: tuple[str, ...] = ("forward",)
    """Methods that compute the output: the rule does not hold for a subclass of the layer that overrides any."""
    multiplies = False
    """Whether the layer is a product with the last dimension and nothing else, so that inputs can be scaled instead."""

    @staticmethod
    @abstractmethod
    def vectors(layer: nn.Module, x: Tensor) -> Tensor:
        """Return all input vectors in ``x``, m x d."""

    @staticmethod
    @abstractmethod
    def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output with another weight and bias than its own."""

    @staticmethod
    def outputs(layer: nn.Module, y: Tensor) -> Tensor | None:
        """Return the output, or its gradient, with one row for each row of ``vectors``; None where that is not known.

        Rows come sample by sample. With groups, those of a sample come group by group, each with its group's outputs.
        """
        return None

    @staticmethod
    def matrix(weight: Tensor) -> Tensor:
        """Return the weight as out x d."""
        return weight.flatten(1)

    @staticmethod
    def weight(matrix: Tensor, like: Tensor) -> Tensor:
        """Invert ``matrix``."""
        return matrix.reshape(like.shape)

    @staticmethod
    def dimensions_after_units(layer: nn.Module) -> int:
        """Return how many dimensions of the output come after the one that counts output units."""
        return cast(Tensor, layer.weight).dim() - 2


RULES: dict[type[nn.Module], type[Rule]] = {}


def register(*layer_types: type[nn.Module]) -> Callable[[type[Rule]], type[Rule]]:
    """Class decorator: register a rule for layer types."""

    def enter(rule: type[Rule]) -> type[Rule]:
        RULES.update(dict.fromkeys(layer_types, rule))
        return rule

    return enter


def rule_for(module: nn.Module) -> type[Rule] | None:
    """Return the rule of a module's type, or of a base class that computes the same."""
    for layer_type, rule in RULES.items():
        if isinstance(module, layer_type) and all(
            getattr(type(module), method) is getattr(layer_type, method) for method in rule.computed_by
        ):
            return rule
    return None
