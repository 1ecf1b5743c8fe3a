"""The benchmarks and methods of `cuber list`."""

from __future__ import annotations

from dataclasses import dataclass

from cuber.core.settings import settings_of
from cuber.experiments.presets import BENCHMARKS, Benchmark
from cuber.methods import METHODS, Method, all_methods


@dataclass(frozen=True)
class Entry:
    """A benchmark or method with its settings."""

    name: str
    help: str
    settings: list[tuple[str, str, str]]
    """Name, value and description."""
    inherits: str | None = None
    """The method whose settings it has, too."""


def benchmarks() -> list[Entry]:
    """All benchmarks with their training settings."""
    return [_benchmark(benchmark) for benchmark in BENCHMARKS.values()]


def _benchmark(benchmark: Benchmark) -> Entry:
    training = benchmark.training
    values = f"epochs {training.epochs}, batch size {training.batch_size}, lr {training.lr:g}"
    if training.patience is not None:
        values += f" / {training.factor:g} after {training.patience} epochs without gain, down to {training.floor:g}"
    if benchmark.datasets:
        values += f"; needs {', '.join(benchmark.datasets)}"
    users: dict[tuple[str, str], list[str]] = {}
    for method, settings in benchmark.settings.items():
        for name, value in settings.items() if method in METHODS else ():
            users.setdefault((name, str(value)), []).append(method)
    rows = [(name, str(value), "for all") for name, value in benchmark.for_all_methods.items()]
    rows += [(name, value, "for " + ", ".join(methods)) for (name, value), methods in users.items()]
    return Entry(benchmark.name, f"{benchmark.help} ({values})", rows)


def methods() -> list[Entry]:
    """All methods, each with the settings that it adds to its parent's; methods of other packages come last."""
    plugins = {name: method for name, method in all_methods().items() if name not in METHODS}
    entries: list[Entry] = []
    before: dict[str, type[Method]] = {}
    for name, method in (*reversed(METHODS.items()), *plugins.items()):
        own = settings_of(method)
        # The last method before it whose settings it has, too, among its bases and the classes with the same bases
        parents = [
            other
            for other, kind in before.items()
            if (issubclass(method, kind) or kind.__bases__ == method.__bases__ != (Method,))
            and settings_of(kind).keys() <= own.keys()
        ]
        parent = parents[-1] if parents else None
        inherited = settings_of(before[parent]) if parent else {}
        rows = [(key, str(default), what.help) for key, (default, what) in own.items() if key not in inherited]
        entries.append(Entry(name, (method.__doc__ or "").strip().split("\n")[0].rstrip("."), rows, parent))
        before |= {name: method} if name in METHODS else {}
    return entries
