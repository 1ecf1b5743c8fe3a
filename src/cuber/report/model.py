"""Data model of `cuber compare` and `cuber report`: runs grouped by stream and variant, with means over seeds.

A `Report` has one `Group` per stream, a group one `Variant` per method and settings, a variant one result per seed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from cuber import metrics
from cuber.errors import CuberError, unknown
from cuber.report.statistics import deviation

if TYPE_CHECKING:
    from cuber.experiments.results import RunRecord
    from cuber.training import Result

FIGURES: Mapping[str, Callable[[metrics.Matrix], float | None]] = {
    "bwt": metrics.backward_transfer,
    "forgetting": metrics.forgetting,
}
MISSING = "–"
MACHINE = ("cuber", "torch", "python", "system", "processor", "device", "threads")
"""What training times depend on."""


class View(NamedTuple):
    """How figures are called for which the task of a test sample is not told."""

    label: str
    meaning: str


OTHER_VIEWS = {
    "inferred": View("task inferred", "with the task that is inferred from each sample"),
    "bare": View("task not told", "with the final weights, without telling the network which task it is"),
}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with the standard deviation where there are several."""

    mean: float
    deviation: float | None = None
    printed: str = ""
    """The text in the paper, which gives some figures with more digits than others."""

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Estimate | None:
        """Mean and deviation; None without values, or where one is missing.

        >>> Estimate.of([1.0, 3.0]), Estimate.of([1.0, None])
        (Estimate(mean=2.0, deviation=1.4142135623730951, printed=''), None)
        """
        values = list(values)
        known = [value for value in values if value is not None]
        return cls(fmean(known), deviation(known)) if known and known == values else None


@dataclass(frozen=True, eq=False)
class Variant:
    """A method with its settings, run with one or several seeds on one stream."""

    method: str
    changes: Mapping[str, Any]
    """Settings that differ from those of the other variants of the method."""
    by_seed: Mapping[int, Result]
    directories: Mapping[int, Path] = field(default_factory=dict)
    """The run directory of each seed, which has the training curves."""

    @property
    def label(self) -> str:
        """Name in tables and figures, for example "cuber eps2=0.1"."""
        return " ".join([self.method, *(f"{name}={setting_text(value)}" for name, value in self.changes.items())])

    @property
    def results(self) -> list[Result]:
        return list(self.by_seed.values())

    @property
    def seeds(self) -> list[int]:
        return list(self.by_seed)

    @property
    def tasks(self) -> int:
        return len(self.results[0].tasks)

    @property
    def metric(self) -> metrics.Measure:
        return self.results[0].metric

    @property
    def at_once(self) -> bool:
        """Whether all tasks were learned together, and so tested only once."""
        return len(self.results[0].accuracy) == 1 and self.tasks > 1

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for result in self.results for note in result.notes))

    @property
    def shrunk(self) -> list[str]:
        """Notes about parts of the benchmark that were left out."""
        from cuber.datasets import OFFICIAL_SIZE  # imports numpy, which printing one result does not need

        return [note for note in self.notes if note.startswith("only ") or OFFICIAL_SIZE in note]

    @property
    def chosen(self) -> dict[str, Any]:
        """Settings of the training loop and of the method."""
        return {**self.results[0].training, **self.results[0].settings}

    def pairs(self, other: Variant | None) -> list[tuple[Result, Result]]:
        """Results of both variants for each seed that both have, if they learned the same tasks."""
        theirs = other.by_seed if other is not None else {}
        both = [(ours, theirs[seed]) for seed, ours in self.by_seed.items() if seed in theirs]
        return [(ours, result) for ours, result in both if ours.tasks == result.tasks]

    def with_view(self, view: str) -> Variant | None:
        """Return the variant with those runs alone that were tested in a view, which earlier versions lacked."""
        tested = {seed: result for seed, result in self.by_seed.items() if result.matrix(view) is not None}
        return replace(self, by_seed=tested) if tested else None

    def figure(self, name: str, view: str = "told") -> Estimate | None:
        """ACC, BWT or forgetting over the seeds, with the task "told", "inferred" or not used at all ("bare")."""
        matrices = [result.matrix(view) for result in self.results]
        if name == "acc":
            return Estimate.of(None if matrix is None else metrics.average_accuracy(matrix) for matrix in matrices)
        figure, oriented = FIGURES[name], self.metric.oriented
        return Estimate.of(None if matrix is None else figure(oriented(matrix)) for matrix in matrices)

    @cached_property
    def matrix(self) -> list[list[Estimate | None]]:
        """The accuracy matrix over the seeds."""
        matrices = [result.accuracy for result in self.results]
        return [[Estimate.of(cell) for cell in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]

    @cached_property
    def mean_over_seen(self) -> list[Estimate | None]:
        """Mean accuracy over all tasks learned so far, after each task."""
        rows = zip(*(result.accuracy for result in self.results), strict=True)
        return [Estimate.of(metrics.average_accuracy([row]) for row in by_seed) for by_seed in rows]

    @property
    def seconds(self) -> Estimate:
        """Training time of all tasks."""
        times = [sum(result.seconds) for result in self.results]
        return Estimate(fmean(times), deviation(times))

    @cached_property
    def bytes(self) -> dict[str, float]:
        """Memory after the last task by kind, mean over the seeds, without kinds that are empty."""
        last = [result.bytes[-1] for result in self.results if result.bytes]
        kinds = dict.fromkeys(kind for sizes in last for kind, size in sizes.items() if size)
        return {kind: fmean([sizes.get(kind, 0) for sizes in last]) for kind in kinds}

    @property
    def memory(self) -> float:
        """Bytes kept after the last task."""
        return sum(self.bytes.values())

    @cached_property
    def layers(self) -> dict[str, int]:
        """Layers that have a pool, with the dimension of their inputs."""
        return {layer: pool["dimension"] for after in self.results[0].pool for layer, pool in after.items()}

    def pool(self, layer: str, unit: float = 1) -> list[Estimate | None]:
        """Number of directions in a layer's pool after each task, in a unit."""
        pools = zip(*(result.pool for result in self.results), strict=False)
        return [Estimate.of(pool[layer]["size"] / unit if layer in pool else None for pool in one) for one in pools]

    @cached_property
    def regimes(self) -> set[int]:
        """All regimes that occurred; {1}: old tasks were only protected."""
        layers = [old for result in self.results for by_layer in result.regimes for old in by_layer.values()]
        return {regime["regime"] for old in layers for regime in old.values()}


@dataclass(frozen=True, eq=False)
class Group:
    """All variants that were run on one stream."""

    benchmark: str
    variants: Sequence[Variant]
    stream: Sequence[str] = ()
    """Notes about the stream, for example that only some of its tasks were learned."""
    notes: Sequence[str] = ()
    """What a reader of the tables must know."""
    shown_tasks: Collection[int] | None = None
    """Tasks in figures by task; None: all."""

    @property
    def title(self) -> str:
        """The benchmark, and the parts of it that were left out."""
        return self.benchmark + (f" ({'; '.join(self.stream)})" if self.stream else "")

    @property
    def metric(self) -> metrics.Measure:
        """What all of its runs measure."""
        return self.variants[0].metric

    def of(self, method: str) -> list[Variant]:
        """The variants of one method."""
        return [variant for variant in self.variants if variant.method == method]

    @property
    def results(self) -> list[Result]:
        return [result for variant in self.variants for result in variant.results]

    @cached_property
    def task_names(self) -> list[str]:
        """Names of the tasks of the longest stream; "" where the name depends on the seed."""
        tasks = zip_longest(*(result.tasks for result in self.results))
        names = [{task["name"] for task in by_result if task is not None} for by_result in tasks]
        return [one.pop() if len(one) == 1 else "" for one in names]

    def shows(self, task: int) -> bool:
        """Return whether figures by task show this one."""
        return self.shown_tasks is None or task in self.shown_tasks

    @property
    def all_notes(self) -> list[str]:
        """Notes of the group and of its runs; those of some variants only begin with their labels."""
        return [*self.notes, *self._named(dict.fromkeys(note for one in self.variants for note in one.notes))]

    @property
    def shortened(self) -> list[str]:
        """Notes about what single variants left out, such as epochs; what all left out is in the title."""
        notes = dict.fromkeys(note for variant in self.variants for note in variant.shrunk)
        return self._named(note for note in notes if note not in self.stream)

    def _named(self, notes: Iterable[str]) -> list[str]:
        """The notes; those of some variants only begin with their labels."""
        named = []
        for note in notes:
            users = [variant.label for variant in self.variants if note in variant.notes]
            named.append(note if len(users) == len(self.variants) else f"{', '.join(users)}: {note}")
        return named

    @property
    def memory_kinds(self) -> list[str]:
        """All kinds of memory that the variants kept."""
        return list(dict.fromkeys(kind for variant in self.variants for kind in variant.bytes))

    @property
    def machines(self) -> list[str]:
        """Versions and machines of the runs; times of different machines should not be compared."""
        machines = [result.machine for result in self.results]
        return sorted({", ".join(f"{name} {one[name]}" for name in MACHINE if name in one) for one in machines})

    def settings(self) -> tuple[dict[str, list[str]], dict[str, str]]:
        """Settings that differ between variants (one value per variant), and those that all share."""
        different, same = {}, {}
        for name in dict.fromkeys(name for variant in self.variants for name in variant.chosen):
            values = [setting_text(variant.chosen.get(name, MISSING)) for variant in self.variants]
            if len(set(values)) > 1:
                different[name] = values
            else:
                same[name] = values[0]
        return different, same


@dataclass(frozen=True)
class Report:
    """The finished runs by stream and variant, and the runs without a result, which enter no mean."""

    groups: Sequence[Group]
    unfinished: Sequence[RunRecord] = field(default_factory=list)

    @property
    def runs(self) -> int:
        """Number of finished runs that are counted."""
        return sum(len(group.results) for group in self.groups)

    def only(self, names: Sequence[str]) -> Report:
        """The report with the variants of these labels or methods alone, and without groups that have none of them.

        Raises:
            CuberError: No run has one of the names.
        """
        known = dict.fromkeys(
            name for group in self.groups for one in group.variants for name in (one.method, one.label)
        )
        for name in names if self.groups else ():
            if name not in known:
                raise unknown("method", name, known)
        groups = []
        for group in self.groups:
            chosen = [one for one in group.variants if one.method in names or one.label in names]
            groups += [replace(group, variants=chosen)] if chosen else []
        return replace(self, groups=groups)

    def showing(self, tasks: Collection[int]) -> Report:
        """The report with these tasks alone in figures by task.

        Raises:
            CuberError: No group has one of the tasks.
        """
        most = max((len(group.task_names) for group in self.groups), default=0)
        for task in tasks if self.groups else ():
            if task >= most:
                raise CuberError(f"there is no task {task}: the longest stream has tasks 0 to {most - 1}")
        return replace(self, groups=[replace(group, shown_tasks=tasks) for group in self.groups])


def missing_text(unfinished: Iterable[RunRecord]) -> str:
    """Say how many runs have no result: "2 not finished, 1 damaged"; "" for none."""
    from cuber.experiments.results import DAMAGED  # imports what printing one result does not need

    states = ["damaged" if run.state == DAMAGED else "not finished" for run in unfinished]
    return ", ".join(f"{states.count(state)} {state}" for state in ("not finished", "damaged") if state in states)


def setting_text(value: Any) -> str:
    """A setting's value, short, and the same for equal values.

    >>> setting_text([0.95, 0.99]), setting_text(0.10), setting_text(2.0), setting_text(None)
    ('[0.95,0.99]', '0.1', '2', 'none')
    """
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(setting_text, value))}]"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return "none" if value is None else str(value)
