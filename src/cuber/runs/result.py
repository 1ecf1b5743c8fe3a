"""The result of a run, as plain values."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuber import metrics
from cuber.core.formatting import format_number, pluralize
from cuber.core.settings import is_number
from cuber.errors import CuberError
from cuber.metrics import Measure
from cuber.runs.files import plain, write_atomically

FILE_NAME = "result.json"

AccuracyMatrix = list[list[float | None]]


@dataclass
class Epoch:
    """One pass over a task's training data."""

    train_loss: float
    lr: float
    seconds: float
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    train_accuracy: float | None = None
    """On a few hundred training samples, if there is no validation split."""
    kept: bool = False
    """Whether the weights after this epoch were kept."""


@dataclass(repr=False)
class Result:
    """``accuracy[i][j]`` is the test accuracy (percent) on task j after learning task i, None where j > i.

    With another ``metric``, it is the value of that. ``bwt`` above 0 is improvement, also where lower is better.
    Methods that learn all tasks at once have one row, and one entry in each list of values per task.
    """

    benchmark: str
    method: str
    seed: int
    tasks: list[dict[str, Any]]
    """Name, number of classes and number of samples of each task."""
    settings: dict[str, Any]
    """Hyper-parameters of the method."""
    training: dict[str, Any]
    accuracy: AccuracyMatrix = field(default_factory=list)
    accuracy_bare: AccuracyMatrix | None = None
    """Accuracy without task identity, ``as_task(None)``; only if tasks share a head."""
    reshuffled: AccuracyMatrix = field(default_factory=list)
    """The last row for other orders of the test samples; only if batches are normalized by their own statistics."""
    regimes: list[dict[str, dict[int, dict[str, Any]]]] = field(default_factory=list)
    """Task -> layer -> old task -> regime, ratio and cosine."""
    predictions: list[float] = field(default_factory=list)
    """By how much each task has changed the sum of old losses, as predicted by a method that has a model of them."""
    history: list[list[Epoch]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Training time of each task, without tests."""
    bytes: list[dict[str, int]] = field(default_factory=list)
    """Memory of the method after each task, by kind."""
    pool: list[dict[str, dict[str, int]]] = field(default_factory=list)
    """Task -> layer -> ``size`` and ``dimension`` of its pool."""
    theory: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    """Task -> layer -> conditions of the theorems; only with ``--theory``."""
    machine: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Differences from the benchmark as published."""
    metric: Measure = field(default_factory=Measure)
    """What is measured; in files only if it is not accuracy."""

    @property
    def oriented(self) -> metrics.Matrix:
        """The accuracy matrix, negated where lower is better."""
        return self.metric.oriented(self.accuracy)

    @property
    def acc(self) -> float:
        """Mean accuracy, or mean of another metric, over all tasks after the last one."""
        return metrics.average_accuracy(self.accuracy)

    @property
    def bwt(self) -> float | None:
        """Backward transfer, the mean improvement of old tasks; None for a single row."""
        return metrics.backward_transfer(self.oriented)

    @property
    def forgetting(self) -> float | None:
        """Mean difference of old tasks from their best accuracy; None for a single row."""
        return metrics.forgetting(self.oriented)

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON values, with None for NaN and infinity."""
        values = dataclasses.asdict(self)
        if self.metric == Measure():
            del values["metric"]
        return plain(values)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and metrics as JSON values, after all tasks."""
        bare = self.accuracy_bare
        values = self.plain() | {
            "acc": self.acc,
            "bwt": self.bwt,
            "forgetting": self.forgetting,
            "acc_bare": None if bare is None else metrics.average_accuracy(bare),
            "bwt_bare": None if bare is None else metrics.backward_transfer(self.metric.oriented(bare)),
        }
        first = ("benchmark", "method", "seed", "acc", "bwt", "forgetting", "accuracy")
        return {name: values[name] for name in first} | values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Result:
        """Return the result of which ``plain`` or ``to_dict`` returned the values."""
        own = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
        own["history"] = [[Epoch(**epoch) for epoch in epochs] for epochs in own["history"]]
        own["regimes"] = [
            {layer: {int(old): regime for old, regime in by_task.items()} for layer, by_task in by_layer.items()}
            for by_layer in own["regimes"]
        ]
        own["metric"] = Measure(**own.get("metric", {}))
        for by_layer in own.get("theory", []):
            for layer in by_layer.values():
                layer["old"] = {int(old): conditions for old, conditions in layer["old"].items()}
        return cls(**own)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Result:
        """Read and validate ``directory/result.json``; raise a CuberError if it is missing or damaged."""
        path = Path(directory) / FILE_NAME
        try:
            result = cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
            invalid = first_invalid(result)
            if invalid is not None:
                raise ValueError(f"its '{invalid}' is invalid")
        except OSError as error:
            raise CuberError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CuberError(
                f"{path} is damaged, or not the result of a run ({error}): remove it, and the same run writes it again"
            ) from error
        return result

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write ``directory/result.json`` atomically."""
        path = Path(directory) / FILE_NAME
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise CuberError(f"cannot write {path}: {error.strerror or error}") from error
        return path

    def __repr__(self) -> str:
        bwt = "" if self.bwt is None else f", BWT {format_number(self.bwt, f'+{self.metric.form}')}"
        stream = f"{self.benchmark}, {pluralize(len(metrics.diagonal(self.accuracy)), 'task')}"
        acc = f"{self.metric.short} {self.acc:{self.metric.form}}"
        return f"Result({self.method} on {stream}, seed {self.seed}: {acc}{bwt})"


class UnwrittenResultError(CuberError):
    """A run has finished, but its ``result`` could not be written."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


# Validation of files, so that tables and figures can rely on results

NUMBER = object()
CONDITIONS = dict.fromkeys(("ratio", "cosine", "eps2", "step_size", "agreement"), object)
SHAPES: dict[str, Any] = {
    "benchmark": str,
    "method": str,
    "seed": int,
    "tasks": [{"name": str}],
    "settings": dict,
    "training": dict,
    "accuracy": [list],
    "reshuffled": [[NUMBER]],
    "regimes": [{...: {...: {"regime": object, "demoted_at": object}}}],
    "predictions": [NUMBER],
    "theory": [{...: {"old": {...: CONDITIONS}}}],
    "seconds": [NUMBER],
    "bytes": [{...: NUMBER}],
    "pool": [{...: {"size": NUMBER, "dimension": NUMBER}}],
    "machine": dict,
    "notes": [str],
    "metric": Measure,
}
"""Field -> type, ``[shape of each entry]``, ``{key: shape}`` or ``{...: shape of each value}``."""


def first_invalid(result: Result) -> str | None:
    """Return the name of the first field that has the wrong type or shape, or None."""
    for name, shape in SHAPES.items():
        if not _fits(getattr(result, name), shape):
            return name
    tasks = len(result.tasks)
    valid = {
        "tasks": tasks > 0,
        "metric": _fits(vars(result.metric), {"name": str, "higher_is_better": bool, "unit": str}),
        "accuracy": _is_matrix(result.accuracy, tasks),
        "accuracy_bare": result.accuracy_bare is None or _is_matrix(result.accuracy_bare, tasks),
        "reshuffled": all(len(row) == tasks for row in result.reshuffled),
        "regimes": _are_of_old_tasks(result.regimes, tasks),
        "theory": _are_of_old_tasks(
            [{name: layer["old"] for name, layer in layers.items()} for layers in result.theory], tasks
        ),
        "predictions": len(result.predictions) in (0, len(result.accuracy)),
        "seconds": bool(result.seconds),
        "bytes": bool(result.bytes),
        "pool": len(result.pool) <= tasks
        and all(pool["dimension"] > 0 for layers in result.pool for pool in layers.values()),
    }
    return next((name for name in valid if not valid[name]), None)


def _fits(value: Any, shape: Any) -> bool:
    if shape is NUMBER:
        return is_number(value)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(entry, shape[0]) for entry in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        if ... in shape:
            return all(_fits(entry, shape[...]) for entry in value.values())
        return all(name in value and _fits(value[name], part) for name, part in shape.items())
    return isinstance(value, shape)


def _is_matrix(rows: Any, tasks: int) -> bool:
    """Return whether there is a row after each task, or a single one after all tasks."""
    if not _fits(rows, [list]) or len(rows) not in (1, tasks):
        return False
    known = range(1, tasks + 1) if len(rows) == tasks else [tasks]
    return all(len(row) == tasks and _fits(row[:count], [NUMBER]) for row, count in zip(rows, known, strict=True))


def _are_of_old_tasks(per_task: list[dict[str, dict[int, Any]]], tasks: int) -> bool:
    return len(per_task) <= tasks and all(
        old < task for task, layers in enumerate(per_task) for by_old in layers.values() for old in by_old
    )
