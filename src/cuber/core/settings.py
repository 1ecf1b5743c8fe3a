"""Hyper-parameters: declared as fields of a method, checked and read from text here."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from cuber.errors import CuberError, UnknownKeyword, unknown

LARGEST = 2**62
"""Bound on integers: they must fit into 64 bits everywhere."""

PerLayer = Any
"""A value for all layers, a list of values in the layers' order, or a mapping from layer names to values."""


@dataclass(frozen=True)
class Setting:
    """Help text and allowed values of a hyper-parameter."""

    help: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    per_layer: bool = False
    equivalent: bool = False
    """Whether all values give the same results up to rounding."""
    above: bool = False
    """Whether values must be above ``low``, which is then not allowed itself."""

    def check(self, name: str, value: Any, default: Any) -> None:
        """Raise unless ``value`` is allowed; the type of ``default`` is that of the setting."""
        several = self.per_layer and isinstance(value, Mapping | Sequence) and not isinstance(value, str)
        for part in (value.values() if isinstance(value, Mapping) else value) if several else [value]:
            if not self._allows(part, default):
                raise CuberError(f"{name} must be {self.describe(default)}, not {short(part)}")

    def _allows(self, value: Any, default: Any) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(default, bool):
            return isinstance(value, bool)
        inside = is_number(value, whole=isinstance(default, int)) and self.low <= value <= self.high
        return inside and not (self.above and value == self.low)

    def describe(self, default: Any) -> str:
        """Describe allowed values, as in "a number from 0 to 1"."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if isinstance(default, bool):
            return "true or false"
        kind = "a whole number" if isinstance(default, int) else "a number"
        if self.above:
            return f"{kind} above {self.low:g}" + (f" and at most {self.high:g}" if math.isfinite(self.high) else "")
        if math.isfinite(self.low) and math.isfinite(self.high):
            return f"{kind} from {self.low:g} to {self.high:g}"
        return f"{kind} of at least {self.low:g}" if math.isfinite(self.low) else kind


def setting(default: Any, help: str, **limits: Any) -> Any:
    """Return a dataclass field that is a hyper-parameter: ``eps1: float = setting(0.5, "share ...", low=0)``.

    Args:
        default: its type is the type of the setting.
        help: for ``cuber list``.
        limits: ``low``, ``high``, ``choices``, ``per_layer``, ``equivalent``, ``above``.

    Returns:
        The field.

    >>> @dataclass
    ... class Decay:
    ...     factor: float = setting(0.9, "factor after each task", low=0, high=1)
    >>> Decay(factor=0.5)
    Decay(factor=0.5)
    """
    return dataclasses.field(default=default, kw_only=True, metadata={"setting": Setting(help, **limits)})


def settings_of(method: Any) -> dict[str, tuple[Any, Setting]]:
    """Return name -> (default, setting) of a method's hyper-parameters."""
    fields = dataclasses.fields(method)
    return {f.name: (f.default, f.metadata["setting"]) for f in fields if "setting" in f.metadata}


class WithSettings:
    """A base class that suggests the right name for a misspelt keyword of the constructor."""

    def __new__(cls, *_: Any, **keywords: Any) -> Any:
        known = inspect.signature(cls.__init__).parameters
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        for name in () if open_ended else keywords:
            if name not in known:
                own = [other for other in known if other not in ("self", "model")]
                raise unknown(f"setting of {cls.__name__}", name, own, UnknownKeyword)
        return super().__new__(cls)


def check_settings(method: Any) -> None:
    """Raise unless every hyper-parameter of a learner has an allowed value."""
    for name, value in vars(kind := type(method)).items():
        if isinstance(value, dataclasses.Field):
            raise CuberError(
                f"{kind.__name__}.{name} is not a setting: put @dataclass(eq=False, repr=False) above the class"
            )
    check_values(kind, {name: getattr(method, name) for name in settings_of(method)})


def check_values(method: type, values: Mapping[str, Any]) -> None:
    """Raise unless a method has all of these settings, with allowed values."""
    known = settings_of(method)
    for name, value in values.items():
        if name not in known:
            raise unknown(f"setting of {method.__name__}", name, known)
        default, allowed = known[name]
        allowed.check(f"{method.__name__}: {name}", value, default)


def parse_settings(assignments: Sequence[str]) -> dict[str, str]:
    """Read assignments of ``--set``: each name once, with a value.

    >>> parse_settings(["eps1=0.4", "check=step"])
    {'eps1': '0.4', 'check': 'step'}
    """
    values: dict[str, str] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if not name or not text:
            raise CuberError(f"--set takes name=value, not '{assignment}'")
        if name in values:
            raise CuberError(f"--set has two values for {name}, '{values[name]}' and '{text}': give it one")
        values[name] = text
    return values


def read_value(text: str) -> Any:
    """Read a value as written in Python or TOML; other text stays text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def is_number(value: Any, *, whole: bool = False) -> bool:
    """Return whether a value is a finite number, numpy's included, and no bool."""
    if isinstance(value, Integral):
        return not isinstance(value, bool) and -LARGEST < int(value) < LARGEST
    return not whole and isinstance(value, Real) and math.isfinite(value)


def short(value: Any) -> str:
    """Return the ``repr`` of a value, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
