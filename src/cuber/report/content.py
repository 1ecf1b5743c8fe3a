"""What a report is made of: results as plain values, put together by benchmark and variant, and their means."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cuber.core.formatting import pluralize

PlainResult = Mapping[str, Any]
"""What ``result.json`` holds: ``Result.to_dict()``."""

ONLY_PROTECTED = 1


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, and the standard deviation where there are several."""

    mean: float
    deviation: float | None = None


def spread(values: Iterable[float | None]) -> Spread | None:
    """The mean and sample deviation; None where a value is missing: what some seeds lack is no mean of all.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, deviation=1.4142135623730951)
    """
    known = list(values)
    numbers = [value for value in known if value is not None]
    if not numbers or len(numbers) < len(known):
        return None
    return Spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None)


@dataclass(frozen=True, eq=False)
class Variant:
    """A method with its settings, and its result with each seed. All results are of the same stream and settings."""

    label: str
    results: Sequence[PlainResult]

    @property
    def first(self) -> PlainResult:
        """What all results have in common can be read from it."""
        return self.results[0]

    @property
    def seeds(self) -> list[int]:
        return [result["seed"] for result in self.results]

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for result in self.results for note in result.get("notes", [])))

    @property
    def tasks(self) -> int:
        return len(self.first["tasks"])

    @property
    def at_once(self) -> bool:
        """Whether all tasks were learnt together, and so tested once."""
        return len(self.first["accuracy"]) == 1 and self.tasks > 1

    def figure(self, name: str) -> Spread | None:
        """ACC, BWT or another single number of each result."""
        return spread(result.get(name) for result in self.results)

    @cached_property
    def matrix(self) -> list[list[Spread | None]]:
        """The accuracy matrix over the seeds."""
        matrices = [result["accuracy"] for result in self.results]
        return [[spread(cell) for cell in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]

    @cached_property
    def mean_over_seen(self) -> list[Spread | None]:
        """The mean accuracy of all tasks learnt so far, after each."""
        matrices = [result["accuracy"] for result in self.results]
        return [
            spread(statistics.fmean(value for value in row if value is not None) for row in rows)
            for rows in zip(*matrices, strict=True)
        ]

    @property
    def seconds(self) -> Spread | None:
        """For learning all tasks."""
        return spread(sum(result["seconds"]) for result in self.results)

    @property
    def bytes(self) -> dict[str, float]:
        """What is kept in the end by kind, as a mean over the seeds."""
        last = [result["bytes"][-1] for result in self.results if result["bytes"]]
        kinds = dict.fromkeys(kind for sizes in last for kind, size in sizes.items() if size)
        return {kind: statistics.fmean(sizes.get(kind, 0) for sizes in last) for kind in kinds}

    @property
    def layers(self) -> list[str]:
        """Those that have a pool."""
        return list(dict.fromkeys(layer for after in self.first.get("pool", []) for layer in after))

    def pool(self, layer: str, part: str = "size") -> list[Spread | None]:
        """A layer's pool after each task: its number of directions, or the ``share`` of all in percent."""
        sizes = [[after.get(layer) for after in result.get("pool", [])] for result in self.results]
        return [spread(_pool_part(pool, part) for pool in pools) for pools in zip(*sizes, strict=False)]

    @property
    def has_regimes(self) -> bool:
        """Whether any old task was ever more than only protected."""
        return any(regime["regime"] != ONLY_PROTECTED for result in self.results for regime in _regimes(result))

    @property
    def only_protects(self) -> bool:
        """Whether old tasks were only protected, everywhere."""
        return not self.has_regimes and any(True for result in self.results for _ in _regimes(result))


def _pool_part(pool: Mapping[str, int] | None, part: str) -> float | None:
    if pool is None:
        return None
    return 100 * pool["size"] / pool["dimension"] if part == "share" else pool[part]


def _regimes(result: PlainResult) -> Iterable[Mapping[str, Any]]:
    for by_layer in result.get("regimes", []):
        for by_task in by_layer.values():
            yield from by_task.values()


@dataclass(frozen=True, eq=False)
class Benchmark:
    """All variants that were run on one stream."""

    title: str
    variants: Sequence[Variant]
    notes: Sequence[str] = field(default_factory=list)

    @property
    def task_names(self) -> list[str]:
        """The names of the tasks, where they do not depend on the seed; of the longest stream."""
        names = [[task["name"] for task in result["tasks"]] for v in self.variants for result in v.results]
        longest = max(names, key=len)
        return [
            name if all(other[place] == name for other in names if place < len(other)) else ""
            for place, name in enumerate(longest)
        ]

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for variant in self.variants for seed in variant.seeds})

    @property
    def all_notes(self) -> list[str]:
        """The benchmark's, and those of the runs with the variants that they are about, where not about all."""
        users: dict[str, list[str]] = {}
        for variant in self.variants:
            for note in variant.notes:
                users.setdefault(note, []).append(variant.label)
        everybody = len(self.variants)
        return [
            *self.notes,
            *(note if len(by) == everybody else f"{', '.join(by)}: {note}" for note, by in users.items()),
        ]

    @property
    def machines(self) -> list[str]:
        """Where it was computed; several where times should not be compared."""
        results = [result for variant in self.variants for result in variant.results]
        return sorted({_machine(result.get("machine", {})) for result in results} - {""})

    def settings(self) -> tuple[dict[str, list[Value | None]], dict[str, Value | None]]:
        """Settings that tell variants apart (a value for each variant, None for none), and those that all share."""
        chosen = [
            {**variant.first.get("training", {}), **variant.first.get("settings", {})} for variant in self.variants
        ]
        different, same = {}, {}
        for name in dict.fromkeys(name for values in chosen for name in values):
            values = [Value(known[name]) if name in known else None for known in chosen]
            if all(value == values[0] for value in values):
                same[name] = values[0]
            else:
                different[name] = values
        return different, same


@dataclass(frozen=True)
class Value:
    """The value of a setting, which may itself be None."""

    value: Any

    def __str__(self) -> str:
        return "none" if self.value is None else str(self.value)


def _machine(machine: Mapping[str, Any]) -> str:
    versions = [f"{name} {machine[name]}" for name in ("cuber", "torch", "python") if name in machine]
    place = [str(machine[name]) for name in ("system", "processor", "device") if name in machine]
    threads = machine.get("threads")
    count = [] if threads is None else [pluralize(threads, "thread")]
    return ", ".join([*versions, *place, *count])


@dataclass(frozen=True)
class Unfinished:
    """A run that has no result, and so no part in any mean."""

    directory: str
    name: str
    """What was run, as far as it is known."""
    reason: str


@dataclass(frozen=True)
class Content:
    """All that a report shows."""

    benchmarks: Sequence[Benchmark]
    unfinished: Sequence[Unfinished] = field(default_factory=list)

    @property
    def runs(self) -> int:
        """How many have finished."""
        return sum(len(variant.results) for benchmark in self.benchmarks for variant in benchmark.variants)
