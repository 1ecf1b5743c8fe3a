"""Methods of other packages, which offer them by an entry point in the group ``cuber.methods``."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points

from cuber.core.learner import Method
from cuber.errors import CuberError, CuberWarning, unknown

GROUP = "cuber.methods"


def load(name: str, built_in: Collection[str]) -> type[Method]:
    """The method that some package offers by this name, which is not one of the names ``built_in``."""
    offers = _offers()
    if name not in offers:
        raise unknown("method", name, dict.fromkeys([*built_in, *offers]))
    return _load(offers[name])


def load_all(built_in: Collection[str]) -> dict[str, type[Method]]:
    """Every method that a package offers, by name; a warning for each that cannot be had."""
    methods = {}
    for name, offers in _offers().items():
        try:
            if name in built_in:
                raise CuberError(f"{_who(offers[0])} offers a method '{name}', but cuber has its own: rename theirs")
            methods[name] = _load(offers)
        except CuberError as error:
            warnings.warn(str(error), CuberWarning, stacklevel=2)
    return methods


def _offers() -> dict[str, list[EntryPoint]]:
    offers: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        offers.setdefault(entry.name, []).append(entry)
    return offers


def _load(offers: list[EntryPoint]) -> type[Method]:
    entry = offers[0]
    if len(offers) > 1:
        raise CuberError(
            f"method '{entry.name}' is offered by {' and '.join(map(_who, offers))}: uninstall one of them"
        )
    what = f"method '{entry.name}' of {_who(entry)}"
    try:
        method = entry.load()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise CuberError(f"{what} cannot be imported from {entry.value}: {type(error).__name__}: {reason}") from error
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise CuberError(f"{what}, {entry.value}, is not a class below cuber.Method")
    return method


def _who(entry: EntryPoint) -> str:
    return f"the package '{entry.dist.name if entry.dist is not None else entry.module}'"
