"""Methods of other packages, found by their entry points in the group ``cuber.methods``."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points

from cuber.core.learner import Method
from cuber.errors import CuberError, CuberWarning, unknown


def load(name: str, built_in: Collection[str]) -> type[Method]:
    """Return the method of another package with this name, which is not in ``built_in``."""
    found = _entry_points()
    if name not in found:
        raise unknown("method", name, dict.fromkeys([*built_in, *found]))
    return _load(found[name])


def load_all(built_in: Collection[str]) -> dict[str, type[Method]]:
    """Return all methods of other packages by name; warn of those that cannot be loaded."""
    methods = {}
    for name, entries in _entry_points().items():
        try:
            if name in built_in:
                raise CuberError(f"{_package(entries[0])} offers a method '{name}', but cuber has its own: rename it")
            methods[name] = _load(entries)
        except CuberError as error:
            warnings.warn(str(error), CuberWarning, stacklevel=2)
    return methods


def _entry_points() -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group="cuber.methods"):
        found.setdefault(entry.name, []).append(entry)
    return found


def _load(entries: list[EntryPoint]) -> type[Method]:
    entry = entries[0]
    if len(entries) > 1:
        packages = " and ".join(map(_package, entries))
        raise CuberError(f"method '{entry.name}' is offered by {packages}: uninstall one of them")
    what = f"method '{entry.name}' of {_package(entry)}"
    try:
        method = entry.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise CuberError(f"{what} cannot be imported from {entry.value}: {reason}") from error
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise CuberError(f"{what}, {entry.value}, is not a subclass of cuber.Method")
    return method


def _package(entry: EntryPoint) -> str:
    return f"the package '{entry.dist.name if entry.dist is not None else entry.module}'"
