"""Group runs by stream, method, settings and seed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cuber.core.boundaries import Boundaries
from cuber.core.encoding import printable, printable_values
from cuber.core.settings import is_number, settings_of
from cuber.datasets import OFFICIAL_SIZE
from cuber.errors import CuberError
from cuber.experiments.experiment import Experiment
from cuber.experiments.presets import OF_THE_PAPER, PAPER_NAMES
from cuber.experiments.results import RunRecord, load
from cuber.metrics import Measure
from cuber.report.model import Group, Report, Variant, setting_text
from cuber.training import Result
from cuber.training.detecting import EPOCH_SAMPLES

METHODS = ("multitask", "finetune", "owm", "ewc", "hat", "agem", "er", "gpm", "trgp", "cuber")
"""Order of the paper's table; other methods follow by name."""
NOT_IN_LABELS = {
    *("benchmark", "method", "seed", "tasks", "train_per_task", "test_per_task"),  # shown elsewhere in the tables
    *("data_dir", "threads", "device", "parameters", "architecture", "contents"),  # do not change the result
    "options",  # split into its entries
}
"""Configuration entries by which runs are not split into variants."""
UNKNOWN = "?"

Finished = tuple[RunRecord, Result]


def load_report(paths: Iterable[str | os.PathLike[str]]) -> Report:
    """Read all runs in the directories."""
    return make_report(load(paths))


def make_report(runs: Iterable[RunRecord]) -> Report:
    """Group the finished runs by stream and variant.

    >>> make_report([])
    Report(groups=[], unfinished=[])
    """
    runs = [_printable(run) for run in runs]
    by_stream: dict[tuple[str, int, tuple[str, ...], Measure], list[Finished]] = {}
    for run in runs:
        if run.result is not None:
            key = (run.result.benchmark, len(run.result.tasks), _stream_notes(run.result), run.result.metric)
            by_stream.setdefault(key, []).append((run, run.result))
    groups = [_group(benchmark, notes, finished) for (benchmark, _, notes, _), finished in by_stream.items()]
    return Report(groups, [run for run in runs if run.result is None])


def _printable(run: RunRecord) -> RunRecord:
    """A run with names that tables, figures and pages can show: files may hold any text."""
    result = run.result and Result.from_dict(printable_values(run.result.plain()))
    directory = printable(str(run.directory))
    reason = printable(" ".join(run.reason.replace(str(run.directory), directory).split()))
    return replace(run, directory=Path(directory), config=printable_values(run.config), result=result, reason=reason)


def _group(benchmark: str, stream: tuple[str, ...], finished: list[Finished]) -> Group:
    variants, notes = [], []
    methods = {result.method for _, result in finished}
    for method in sorted(methods, key=lambda name: (METHODS.index(name) if name in METHODS else len(METHODS), name)):
        for changes, members in _split([one for one in finished if one[1].method == method]):
            by_seed, repeated = _by_seed(members)
            directories = {one.seed: run.directory for run, one in members if one is by_seed[one.seed]}
            variants.append(Variant(method, changes, by_seed, directories))
            notes += [f"{variants[-1].label}: {sentence}" for sentence in repeated]
    if benchmark in PAPER_NAMES:
        notes += [sentence for variant in variants for sentence in _departures(benchmark, variant)]
    return Group(benchmark, variants, stream, notes + _training_differences(variants))


def _split(finished: list[Finished]) -> list[tuple[dict[str, Any], list[Finished]]]:
    """Split the runs of one method by the settings in which they differ."""
    features = [
        {
            **run.about,
            **run.about.get("options", {}),
            **_missing(result),
            **result.settings,
            **result.training,
            **_boundaries(result),
            "tests": len(result.accuracy),
        }
        for run, result in finished
    ]
    names = dict.fromkeys(name for values in features for name in values if name not in NOT_IN_LABELS)
    differing = [name for name in names if len({setting_text(values.get(name, UNKNOWN)) for values in features}) > 1]
    if "protocol" in differing and _follow("protocol", differing, features):
        differing = ["protocol"]
    found: dict[str, tuple[dict[str, Any], list[Finished]]] = {}
    for one, values in zip(finished, features, strict=True):
        changes = {name: values.get(name, UNKNOWN) for name in differing}
        found.setdefault(setting_text(list(changes.values())), (changes, []))[1].append(one)

    def order(value: Any) -> tuple[int, float, str]:
        return (0, float(value), "") if is_number(value) else (1, 0.0, setting_text(value))

    return sorted(found.values(), key=lambda part: [order(value) for value in part[0].values()])


def _boundaries(result: Result) -> dict[str, Any]:
    """Return whether boundaries of tasks were told or detected, and the settings by which they were detected.

    Where they were told, the usual settings, so that these tell apart only runs that detected them.
    """
    chosen = result.training.get("boundaries")
    usual = {name: default for name, (default, _) in settings_of(Boundaries).items()}
    if isinstance(chosen, dict):
        return {"boundaries": "detected", **usual, **chosen}
    return {"boundaries": "told", **usual, "epoch_samples": EPOCH_SAMPLES}


def _missing(result: Result) -> dict[str, Any]:
    """Settings that a run of an earlier version lacks, as its benchmark has them: it ran as if they were set so."""
    try:
        usual = _usual(Experiment(result.benchmark, result.method))
    except CuberError:  # a benchmark or a method of somebody else
        return {}
    return {name: value for name, value in usual.items() if name not in result.settings}


def _usual(experiment: Experiment) -> dict[str, Any]:
    """Return every setting of the method, as the benchmark has it."""
    defaults = {name: default for name, (default, _) in settings_of(experiment.method_class).items()}
    return defaults | experiment.method_settings()


def _follow(name: str, others: Sequence[str], features: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the value of ``name`` decides those of all others."""
    values = {setting_text([one.get(other, UNKNOWN) for other in others]) for one in features}
    return len(values) == len({setting_text(one.get(name, UNKNOWN)) for one in features})


def _by_seed(finished: list[Finished]) -> tuple[dict[int, Result], list[str]]:
    """Results by seed; where a seed occurs more than once, one run is used and a note says so.

    It is the first that has recorded the conditions of the theorems, or the first.
    """
    first: dict[int, Finished] = {}
    notes = []
    for run, result in sorted(finished, key=lambda one: not one[1].theory):
        used, known = first.setdefault(result.seed, (run, result))
        if used is not run:
            same = "the same" if known.accuracy == result.accuracy else "different"
            notes.append(
                f"{run.directory} repeats seed {result.seed} with {same} accuracies; only {used.directory} is counted"
            )
    return {seed: first[seed][1] for seed in sorted(first)}, notes


def _training_differences(variants: Sequence[Variant]) -> list[str]:
    """A note for each training setting that differs between methods, except the learning rate."""
    users: dict[str, dict[str, list[str]]] = {}
    for variant in variants:
        for name, value in variant.results[0].training.items():
            if name != "lr" and name not in variant.changes:
                methods = users.setdefault(name, {}).setdefault(setting_text(value), [])
                methods.extend([variant.method] if variant.method not in methods else [])
    return [
        f"trained differently: {name} is "
        + ", ".join(f"{value} for {' and '.join(by)}" for value, by in values.items())
        for name, values in users.items()
        if len(values) > 1
    ]


def _departures(benchmark: str, variant: Variant) -> list[str]:
    """A note where the settings of a variant differ from the benchmark's, so from those of the paper's figures."""
    if variant.method not in METHODS:
        return []
    found = []
    for protocol in OF_THE_PAPER:
        experiment = Experiment(benchmark, variant.method, protocol=protocol)
        usual = _usual(experiment) | asdict(experiment.training())
        chosen = {**usual, **variant.chosen}
        if chosen["epochs"] < usual["epochs"]:  # the result has its own note about this
            del usual["epochs"]
        texts = [(name, setting_text(chosen[name]), setting_text(value)) for name, value in usual.items()]
        found.append([f"{name} is {ours}, not {theirs}" for name, ours, theirs in texts if ours != theirs])
    fewest = min(found, key=len)
    return [f"{variant.label}: settings differ from the benchmark's: {'; '.join(fewest)}"] if fewest else []


def _stream_notes(result: Result) -> tuple[str, ...]:
    """Notes about the whole stream or a whole dataset, not about single tasks or the number of epochs."""
    tasks = tuple(f"{task.get('name')}: " for task in result.tasks)
    lasting = [note for note in result.notes if OFFICIAL_SIZE in note or not note.startswith(tasks)]
    return tuple(note for note in lasting if not note.endswith(" epochs"))
