"""Rules, which describe a type of layer as a matrix that acts on vectors, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn


class Rule(ABC):
    """How one type of layer computes. Subclass and :func:`register` it to protect layers of this type.

    The layer's ``weight``, as an out x d matrix, must act on the vectors that ``vectors`` returns. Its ``bias`` is
    treated elsewhere, as the weight of another input that is always 1.

    >>> class Doubled(nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(2 * x)
    >>> @register(Doubled)
    ... class DoubledRule(Rule):
    ...     @staticmethod
    ...     def vectors(layer, x):
    ...         return 2 * x.reshape(-1, layer.in_features)
    ...     @staticmethod
    ...     def apply(layer, x, weight, bias):
    ...         return nn.functional.linear(2 * x, weight, bias)
    >>> import cuber
    >>> list(cuber.GPM(nn.Sequential(Doubled(4, 3), nn.ReLU(), nn.Linear(3, 2))).layers)
    ['0', '2']
    """

    computed_by: tuple[str, ...] = ("forward",)
    """Methods that compute the output; the rule does not hold for a subclass of the layer that overrides any."""
    multiplies = False
    """Whether the layer is a product with the last dimension and nothing else, so that inputs can be scaled instead."""
    whole = True
    """Whether the module computes this layer and nothing else, so that the module's output is the layer's."""

    @staticmethod
    @abstractmethod
    def vectors(layer: nn.Module, x: Tensor) -> Tensor:
        """Return all input vectors of a batch.

        Args:
            layer: the layer.
            x: its input, as ``bind`` returns it.

        Returns:
            The vectors as rows, m x d. A convolution has one for each patch of an image.
        """

    @staticmethod
    @abstractmethod
    def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output with another weight and bias than its own.

        Args:
            layer: the layer, for its options.
            x: its input, as ``bind`` returns it.
            weight: of the shape of ``layer.weight``.
            bias: of the shape of ``layer.bias``; None: no bias.
        """

    @staticmethod
    def bind(layer: nn.Module, *arguments: Any, **named: Any) -> tuple[nn.Module, Tensor]:
        """Return layer and input for the arguments of a call of the layer: here the input alone, by any name.

        Where further arguments are options of what the layer computes, return a copy of it with these options.

        Args:
            layer: the layer.
            arguments: those of the call.
            named: its keyword arguments.
        """
        (x,) = (*arguments, *named.values())
        return layer, x

    @staticmethod
    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        """Return the layer's own output.

        Args:
            layer: the layer.
            x: its input, as ``bind`` returns it.
        """
        return type(layer).forward(layer, x)

    @staticmethod
    def outputs(layer: nn.Module, y: Tensor) -> Tensor | None:
        """Return the output, or its gradient, with one row for each row of ``vectors``; None where that is not known.

        Rows come sample by sample. With groups, those of a sample come group by group, each with its group's outputs.

        Args:
            layer: the layer.
            y: an output of the layer, or a gradient of its shape.
        """
        return None

    @staticmethod
    def matrix(layer: nn.Module, weight: Tensor) -> Tensor:
        """Return the weight as out x d.

        Args:
            layer: the layer, for its options.
            weight: of the shape of ``layer.weight``.
        """
        return weight.flatten(1)

    @staticmethod
    def weight(layer: nn.Module, matrix: Tensor, like: Tensor) -> Tensor:
        """Return the weight whose ``matrix`` is given.

        Args:
            layer: the layer, for its options.
            matrix: out x d.
            like: the layer's weight, for its shape.
        """
        return matrix.reshape(like.shape)

    @staticmethod
    def dimensions_after_units(layer: nn.Module) -> int:
        """Return how many dimensions of the output come after the one that counts output units.

        Args:
            layer: the layer.
        """
        return cast(Tensor, layer.weight).dim() - 2


def variant(module: nn.Module, **attributes: Any) -> Any:
    """Return a module that shares everything with another, except for some attributes."""
    other = object.__new__(type(module))
    other.__dict__.update(module.__dict__)
    other.__dict__.update(attributes)
    return other


RULES: dict[type[nn.Module] | str, Any] = {}
"""Layer type, or its full name -> its rule."""


def register(*layer_types: type[nn.Module] | str) -> Callable[[type[Any]], type[Any]]:
    """Class decorator: register a rule for layer types.

    Args:
        layer_types: classes, or the full names of classes in packages that need not be installed, such as
            ``"transformers.pytorch_utils.Conv1D"``.

    Returns:
        The decorator, which returns the rule unchanged.

    >>> class Scores(nn.Linear):  # its rule would not hold for another forward pass
    ...     def forward(self, x):
    ...         return super().forward(x)
    >>> register(Scores)(rule_for(nn.Linear(4, 3))).__name__
    'LinearRule'
    """

    def enter(rule: type[Any]) -> type[Any]:
        RULES.update(dict.fromkeys(layer_types, rule))
        return rule

    return enter


def registered_type(module: nn.Module) -> tuple[type[nn.Module], Any] | tuple[None, None]:
    """Return the nearest class of a module that has a rule, and the rule."""
    for cls in type(module).__mro__:
        rule = RULES.get(cls) or RULES.get(f"{cls.__module__}.{cls.__qualname__}")
        if rule is not None:
            return cls, rule
    return None, None


def rule_for(module: nn.Module) -> Any:
    """Return the rule of a module's type, or of a base class that computes the same; None: there is none."""
    layer_type, rule = registered_type(module)
    if rule is None or any(getattr(type(module), m) is not getattr(layer_type, m) for m in rule.computed_by):
        return None
    return rule
