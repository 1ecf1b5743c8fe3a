"""Runs that belong together: by stream, by what was run on it, by seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cuber.core.settings import settings_of
from cuber.datasets import OFFICIAL_SIZE
from cuber.experiments.config import Experiment
from cuber.experiments.presets import BENCHMARKS, PAPER_NAMES
from cuber.experiments.results import Run
from cuber.training import Result

METHODS = ("multitask", "finetune", "owm", "ewc", "hat", "agem", "er", "gpm", "trgp", "cuber")
"""In the order of the paper's table; others come after, by name."""
ALIKE = {"benchmark", "method", "seed", "tasks", "train_per_task", "test_per_task"}
"""What makes no variant of a run, since its place in the tables tells it."""
INDIFFERENT = {"data_dir", "threads", "device", "parameters", "architecture", "contents"}
"""What makes no variant of a run, since it decides no result, or the rest decides it."""
USUAL = {"loss": "torch.nn.functional.cross_entropy", "precision": "float32", "compile": False}
"""What results say nothing of that were made before anybody asked."""
OWN_VALUE = "lr"
"""What each method has a value of its own for, by the paper's table of hyper-parameters."""
UNKNOWN = "?"


Finished = tuple[Run, Result]


@dataclass(frozen=True, eq=False)
class Variant:
    """A method with its settings, run with one seed or several."""

    method: str
    changes: Mapping[str, Any]
    """The values that tell it from the other variants of its method; none where it is the only one."""
    by_seed: Mapping[int, Result]

    @property
    def label(self) -> str:
        """Its name in tables: "cuber eps2=0.1"."""
        return " ".join([self.method, *(f"{name}={show(value)}" for name, value in self.changes.items())])

    @property
    def results(self) -> list[Result]:
        """In the order of the seeds."""
        return list(self.by_seed.values())

    @property
    def shrunk(self) -> list[str]:
        """What was left out of the benchmark, by the runs' own notes."""
        return list(dict.fromkeys(note for result in self.results for note in result.notes if _is_cut(note)))

    def values(self, figure: Callable[[Result], float | None]) -> list[float]:
        """A figure of each result that has it."""
        return [value for value in map(figure, self.results) if value is not None]

    def pairs(self, other: Variant) -> list[tuple[Result, Result]]:
        """Our result and the other's for each seed that both have, if it is the same stream that they learnt."""
        both = [(result, other.by_seed[seed]) for seed, result in self.by_seed.items() if seed in other.by_seed]
        return [(ours, theirs) for ours, theirs in both if ours.tasks == theirs.tasks]


@dataclass(frozen=True, eq=False)
class Group:
    """All variants that were run on one stream."""

    benchmark: str
    stream: tuple[str, ...]
    """What is to be known of it: that it was cut short, for example."""
    variants: list[Variant]
    notes: list[str]
    """What a reader of its tables must know."""

    @property
    def title(self) -> str:
        """The benchmark, and what was left out of it."""
        return self.benchmark + (f" ({'; '.join(self.stream)})" if self.stream else "")

    def of(self, method: str) -> list[Variant]:
        """The variants of one method."""
        return [variant for variant in self.variants if variant.method == method]


def group(runs: Iterable[Run]) -> list[Group]:
    """The finished runs, by stream and variant."""
    by_stream: dict[tuple[str, int, tuple[str, ...]], list[Finished]] = {}
    for run in runs:
        if run.result is not None:
            key = (run.result.benchmark, len(run.result.tasks), _stream_notes(run.result))
            by_stream.setdefault(key, []).append((run, run.result))
    return [_group(benchmark, notes, finished) for (benchmark, _, notes), finished in by_stream.items()]


def _group(benchmark: str, stream: tuple[str, ...], finished: list[Finished]) -> Group:
    variants, notes = [], []
    for method in sorted({result.method for _, result in finished}, key=_place):
        for changes, members in _apart([one for one in finished if one[1].method == method]):
            by_seed, repeated = _by_seed(members)
            variants.append(Variant(method, changes, by_seed))
            notes += [f"{variants[-1].label}: {sentence}" for sentence in repeated]
    if benchmark in PAPER_NAMES:
        notes += [sentence for variant in variants for sentence in _departures(benchmark, variant)]
    return Group(benchmark, stream, variants, notes + _unlike(variants))


def _place(method: str) -> tuple[int, str]:
    return METHODS.index(method) if method in METHODS else len(METHODS), method


def _apart(finished: list[Finished]) -> list[tuple[dict[str, Any], list[Finished]]]:
    """The runs of one method by the values in which they differ."""
    features = [_features(run, result) for run, result in finished]
    names = dict.fromkeys(name for values in features for name in values)
    differing = [name for name in names if len({_key(values.get(name, UNKNOWN)) for values in features}) > 1]
    found: dict[str, tuple[dict[str, Any], list[Finished]]] = {}
    for one, values in zip(finished, features, strict=True):
        changes = {name: values.get(name, UNKNOWN) for name in differing}
        found.setdefault(_key(list(changes.values())), (changes, []))[1].append(one)
    return sorted(found.values(), key=lambda part: [_sortable(value) for value in part[0].values()])


def _features(run: Run, result: Result) -> dict[str, Any]:
    """Everything that was chosen for a run, but for what never makes a variant."""
    chosen = {**USUAL, **_flat(run.about), **result.settings, **result.training}
    return {name: value for name, value in chosen.items() if name not in ALIKE | INDIFFERENT}


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat


def _by_seed(finished: list[Finished]) -> tuple[dict[int, Result], list[str]]:
    """The results by seed; of several with the same one the first counts, and a sentence says so."""
    first: dict[int, Finished] = {}
    sentences = []
    for run, result in finished:
        kept, counted = first.setdefault(result.seed, (run, result))
        if kept is not run:
            same = "the same" if counted.accuracy == result.accuracy else "other"
            sentences.append(
                f"seed {result.seed} is there again in {run.directory}, with {same} accuracies; "
                f"only {kept.directory} counts"
            )
    return {seed: first[seed][1] for seed in sorted(first)}, sentences


def _unlike(variants: list[Variant]) -> list[str]:
    """A sentence for each setting of the training loop that differs from method to method, but for the rate."""
    users: dict[str, dict[str, list[str]]] = {}
    for variant in variants:
        for name, value in variant.results[0].training.items():
            if name != OWN_VALUE and name not in variant.changes:
                methods = users.setdefault(name, {}).setdefault(show(value), [])
                methods.extend([variant.method] if variant.method not in methods else [])
    return [
        f"not trained alike: {name} is " + ", ".join(f"{value} for {' and '.join(by)}" for value, by in values.items())
        for name, values in users.items()
        if len(values) > 1
    ]


def _departures(benchmark: str, variant: Variant) -> list[str]:
    """A sentence where a variant has other settings than the benchmark's own, beside the paper's figures."""
    if variant.method not in METHODS:
        return []
    chosen = {**variant.results[0].training, **variant.results[0].settings}
    found = []
    for protocol in BENCHMARKS[benchmark].protocols:
        usual = _usual(Experiment(benchmark, variant.method, protocol=protocol))
        differing = {name: value for name, value in usual.items() if _key(chosen.get(name, value)) != _key(value)}
        if chosen.get("epochs", 0) < usual["epochs"]:  # which the result has a note of
            differing.pop("epochs", None)
        found.append([f"{name} is {show(chosen[name])}, not {show(value)}" for name, value in differing.items()])
    fewest = min(found, key=len)
    return [f"{variant.label}: not the benchmark's own settings: {'; '.join(fewest)}"] if fewest else []


def _usual(experiment: Experiment) -> dict[str, Any]:
    defaults = {name: default for name, (default, _) in settings_of(experiment.method_class).items()}
    return {**defaults, **asdict(experiment.training()), **experiment.method_settings()}


def _stream_notes(result: Result) -> tuple[str, ...]:
    """The notes about the stream as a whole, or a whole dataset: not those that depend on the seed, nor on epochs."""
    tasks = tuple(f"{task.get('name')}: " for task in result.tasks)
    lasting = [note for note in result.notes if OFFICIAL_SIZE in note or not note.startswith(tasks)]
    return tuple(note for note in lasting if not note.endswith(" epochs"))


def _is_cut(note: str) -> bool:
    return note.startswith("only ") or OFFICIAL_SIZE in note


def show(value: Any) -> str:
    """A setting's value, short.

    >>> show([0.95, 0.99]), show(0.10), show(None)
    ('[0.95,0.99]', '0.1', 'none')
    """
    if isinstance(value, list):
        return f"[{','.join(map(show, value))}]"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "none" if value is None else str(value)


def _sortable(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if _is_number(value) else (1, 0.0, show(value))


def _key(value: Any) -> str:
    """The same for values that are equal: 0 and 0.0, lists with the same members."""
    if isinstance(value, list):
        return json.dumps([_key(part) for part in value])
    return json.dumps(float(value) if _is_number(value) else value, default=str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
