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
from cuber.errors import CuberError
from cuber.metrics import Measure
from cuber.runs.files import plain, read_text, write_atomically
from cuber.runs.schema import EARLIER_METHODS, check_result, read_json

FILE_NAME = "result.json"

AccuracyMatrix = list[list[float | None]]
VIEWS = {"told": "accuracy", "inferred": "accuracy_inferred", "bare": "accuracy_bare"}
"""What is known of a test sample's task -> the field of the result: its number, what is inferred, or nothing."""


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
    """The result of a run: ``cuber.learn`` returns it, and ``result.json`` holds it.

    ``accuracy[i][j]`` is the test accuracy (percent) on task j after learning task i, None where j > i. With another
    ``metric``, it is the value of that. ``bwt`` above 0 is improvement, also where lower is better.
    Methods that learn all tasks at once have one row, and one entry in each list of values per task.

    >>> matrix = [[90.0, None], [91.0, 80.0]]
    >>> result = Result("mine", "cuber", 0, [{"name": "a"}, {"name": "b"}], {}, {}, accuracy=matrix)
    >>> result.acc, result.bwt, result.forgetting
    (85.5, 1.0, 0.0)
    >>> Result.from_dict(result.to_dict())
    Result(cuber on mine, 2 tasks, seed 0: ACC 85.50, BWT +1.00)
    >>> import tempfile
    >>> from cuber.experiments import Experiment, run
    >>> result = run(Experiment("split-digits", "finetune", tasks=2, epochs=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result.save(folder).name, Result.load(folder) == result
    ('result.json', True)
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
    accuracy_inferred: AccuracyMatrix | None = None
    """Accuracy with the inferred task, ``as_task("infer")``; only of methods that can infer it.

    Where tasks have a head each, an answer for another task is wrong, whatever its class."""
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
    boundaries: dict[str, Any] | None = None
    """Where tasks were found to begin, and where they do; only with ``boundaries="detect"``."""

    def matrix(self, view: str) -> AccuracyMatrix | None:
        """Return the accuracy matrix with the task "told", "inferred", or not used at all ("bare"), if there is one."""
        return getattr(self, VIEWS[view])

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
        if self.boundaries is None:
            del values["boundaries"]
        return plain(values)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and metrics as JSON values, after all tasks."""
        values = self.plain() | {"acc": self.acc, "bwt": self.bwt, "forgetting": self.forgetting}
        for view in ("bare", "inferred"):
            matrix = self.matrix(view)
            values |= {
                f"acc_{view}": None if matrix is None else metrics.average_accuracy(matrix),
                f"bwt_{view}": None if matrix is None else metrics.backward_transfer(self.metric.oriented(matrix)),
            }
        first = ("benchmark", "method", "seed", "acc", "bwt", "forgetting", "accuracy")
        return {name: values[name] for name in first} | values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Result:
        """Return the result of which ``plain`` or ``to_dict`` returned the values.

        Args:
            values: they are not validated; ``load`` does that.
        """
        own = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
        own["method"] = EARLIER_METHODS.get(own["method"], own["method"])
        own["history"] = [[Epoch(**epoch) for epoch in epochs] for epochs in own.get("history", [])]
        own["regimes"] = [
            {layer: {int(old): regime for old, regime in by_task.items()} for layer, by_task in by_layer.items()}
            for by_layer in own.get("regimes", [])
        ]
        own["metric"] = Measure(**own.get("metric", {}))
        for by_layer in own.get("theory", []):
            for layer in by_layer.values():
                layer["old"] = {int(old): conditions for old, conditions in layer["old"].items()}
        return cls(**own)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Result:
        """Return the result in ``directory/result.json``.

        Args:
            directory: the directory of a run.

        Raises:
            CuberError: the file is missing or damaged.
        """
        path = Path(directory) / FILE_NAME
        try:
            values = read_json(read_text(path))
            check_result(values)
        except OSError as error:
            raise CuberError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise CuberError(
                f"{path} is damaged, or not the result of a run ({error}): remove it, and the same run writes it again"
            ) from error
        return cls.from_dict(values)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write ``directory/result.json`` atomically.

        Args:
            directory: made if it does not exist.

        Returns:
            The path of the file.

        Raises:
            CuberError: the file cannot be written.
        """
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
