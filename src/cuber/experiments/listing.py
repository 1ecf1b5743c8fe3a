"""The benchmarks and methods of `cuber list`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cuber.core.docstrings import docstring
from cuber.core.settings import settings_of
from cuber.experiments.outside import all_benchmarks
from cuber.methods import METHODS, Method, all_methods


@dataclass(frozen=True)
class Entry:
    """A benchmark or method with its settings."""

    name: str
    help: str
    settings: list[tuple[str, str, str]]  # name, value and description
    inherits: str | None = None  # the method whose settings it has, too


def as_json(benchmarks: Sequence[Entry], methods: Sequence[Entry]) -> str:
    """All entries as one JSON object, by kind and name; a setting has its value and a description."""
    kinds = {"benchmarks": benchmarks, "methods": methods}
    return json.dumps(
        {kind: {entry.name: _plain(entry) for entry in entries} for kind, entries in kinds.items()}, indent=1
    )


def _plain(entry: Entry) -> dict[str, Any]:
    settings = [dict(zip(("name", "value", "help"), row, strict=True)) for row in entry.settings]
    return {name: value for name, value in asdict(entry).items() if name != "name"} | {"settings": settings}


def benchmarks() -> list[Entry]:
    """All benchmarks with their training settings; those of other packages come last."""
    entries = []
    for benchmark in all_benchmarks().values():
        training = benchmark.training
        how = f"epochs {training.epochs}, batch size {training.batch_size}, lr {training.lr:g}"
        if training.patience is not None:
            how += f" / {training.factor:g} after {training.patience} epochs without gain, down to {training.floor:g}"
        if benchmark.datasets:
            how += f"; needs {', '.join(benchmark.datasets)}"
        users: dict[tuple[str, str], list[str]] = {}
        for method, settings in {"all": benchmark.for_all_methods, **benchmark.settings}.items():
            for name, value in settings.items():
                users.setdefault((name, str(value)), []).append(method)
        rows = [(name, value, "for " + ", ".join(methods)) for (name, value), methods in users.items()]
        entries.append(Entry(benchmark.name, f"{benchmark.help} ({how})", rows))
    return entries


def methods() -> list[Entry]:
    """All methods, each with the settings that it adds to its parent's; methods of other packages come last."""
    known = all_methods()
    entries: list[Entry] = []
    for name in (*reversed(METHODS), *sorted(known.keys() - METHODS.keys())):
        method, own = known[name], settings_of(known[name])
        parents = [entry.name for entry in entries if entry.name in METHODS and _extends(method, known[entry.name])]
        parent = parents[-1] if parents else None
        inherited = settings_of(known[parent]) if parent else {}
        rows = [(key, str(default), what.help) for key, (default, what) in own.items() if key not in inherited]
        entries.append(Entry(name, docstring(method).split("\n")[0].rstrip("."), rows, parent))
    return entries


def _extends(method: type[Method], other: type[Method]) -> bool:
    """Return whether a method is related to another one and has all of its settings."""
    related = issubclass(method, other) or method.__bases__ == other.__bases__ != (Method,)
    return related and settings_of(other).keys() <= settings_of(method).keys()
