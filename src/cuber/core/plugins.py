"""What other packages offer by entry points in the groups ``cuber.methods`` and ``cuber.benchmarks``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cuber.errors import CuberError, CuberWarning, unknown


@dataclass(frozen=True)
class Plugins:
    """The entry points of one group.

    Args:
        kind: What they offer, as in "method"; the group is ``cuber.methods``.
        built_in: Names that cuber has itself, which no package can take.
        check: Says what is wrong with a loaded object; None: nothing.
    """

    kind: str
    built_in: Collection[str]
    check: Callable[[str, Any], str | None]

    @property
    def group(self) -> str:
        """Name of the group of entry points."""
        return f"cuber.{self.kind}s"

    def load(self, name: str) -> Any:
        """Return what a package offers by this name, which is not in ``built_in``."""
        found = self._entry_points()
        if name not in found:
            raise unknown(self.kind, name, dict.fromkeys([*self.built_in, *found]))
        return self._load(found[name])

    def load_all(self) -> dict[str, Any]:
        """Return all that packages offer, by name; warn of those that cannot be loaded."""
        loaded = {}
        for name, entries in self._entry_points().items():
            try:
                if name in self.built_in:
                    package = _package(entries[0])
                    raise CuberError(f"{package} offers a {self.kind} '{name}', but cuber has its own: rename it")
                loaded[name] = self._load(entries)
            except CuberError as error:
                warnings.warn(str(error), CuberWarning, stacklevel=2)
        return loaded

    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self.group):
            found.setdefault(entry.name, []).append(entry)
        return found

    def _load(self, entries: list[EntryPoint]) -> Any:
        entry = entries[0]
        if len(entries) > 1:
            packages = " and ".join(map(_package, entries))
            raise CuberError(f"{self.kind} '{entry.name}' is offered by {packages}: uninstall one of them")
        what = f"{self.kind} '{entry.name}' of {_package(entry)}"
        try:
            loaded = entry.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise CuberError(f"{what} cannot be imported from {entry.value}: {reason}") from error
        if wrong := self.check(entry.name, loaded):
            raise CuberError(f"{what}, {entry.value}, {wrong}")
        return loaded


def _package(entry: EntryPoint) -> str:
    return f"the package '{entry.dist.name if entry.dist is not None else entry.module}'"
