"""What came out of a run: everything that a table or a figure may want, as plain values."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuber import metrics
from cuber.errors import CuberError
from cuber.runs.files import write_atomically
from cuber.core.formatting import pluralize, format_number
from cuber.runs.result_checks import first_wrong

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
    """On a few hundred training samples, where there is no validation part."""
    kept: bool = False
    """Whether the weights at its end are the ones that were kept."""


@dataclass(repr=False)
class Result:
    """``accuracy[i][j]`` is the test accuracy (percent) on task j after learning task i, None where j > i.

    Where all tasks were learnt at once, one row has them all, and so has each other list of what was after each task.
    """

    benchmark: str
    method: str
    seed: int
    tasks: list[dict[str, Any]]
    """Name, classes and number of samples of each task."""
    settings: dict[str, Any]
    """The method's own."""
    training: dict[str, Any]
    accuracy: AccuracyMatrix = field(default_factory=list)
    accuracy_bare: AccuracyMatrix | None = None
    """The same with ``as_task(None)``: nobody says which task it is. Only where tasks share a head."""
    reshuffled: AccuracyMatrix = field(default_factory=list)
    """The last row again, for other orders of the test samples. Only where batches are normalized by themselves."""
    regimes: list[dict[str, dict[int, dict[str, Any]]]] = field(default_factory=list)
    """Task -> layer -> old task -> regime, and why."""
    history: list[list[Epoch]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """For learning each task, the tests after it not included."""
    bytes: list[dict[str, int]] = field(default_factory=list)
    """What the method keeps after each task, by kind."""
    pool: list[dict[str, dict[str, int]]] = field(default_factory=list)
    """Task -> layer -> how many directions are in its pool after the task (``size``), of how many (``dimension``)."""
    theory: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    """Task -> layer -> how far the theorems' conditions were met, of each ``old`` task; where that was asked for."""
    machine: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Why it may not be compared with others: what was left out, or is not as it should be."""

    @property
    def acc(self) -> float:
        """The mean accuracy over all tasks in the end."""
        return metrics.average_accuracy(self.accuracy)

    @property
    def bwt(self) -> float | None:
        """Backward transfer: the mean change of old tasks; None where there is none."""
        return metrics.backward_transfer(self.accuracy)

    @property
    def forgetting(self) -> float | None:
        """The mean loss of old tasks against their best; None where there is none."""
        return metrics.forgetting(self.accuracy)

    def plain(self) -> dict[str, Any]:
        """As far as it has come, ready for JSON: None where a value is missing or not a number."""
        return _plain(dataclasses.asdict(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything, the figures included, when all tasks have been tested."""
        bare = self.accuracy_bare
        values = self.plain() | {
            "acc": self.acc,
            "bwt": self.bwt,
            "forgetting": self.forgetting,
            "acc_bare": None if bare is None else metrics.average_accuracy(bare),
            "bwt_bare": None if bare is None else metrics.backward_transfer(bare),
        }
        first = ["benchmark", "method", "seed", "acc", "bwt", "forgetting", "accuracy"]
        return {name: values[name] for name in [*first, *(name for name in values if name not in first)]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Result:
        """The result that ``plain`` or ``to_dict`` was made of."""
        own = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
        own["history"] = [[Epoch(**epoch) for epoch in epochs] for epochs in own["history"]]
        own["regimes"] = [
            {layer: {int(old): regime for old, regime in by_task.items()} for layer, by_task in by_layer.items()}
            for by_layer in own["regimes"]
        ]
        for by_layer in own.get("theory", []):
            for layer in by_layer.values():
                layer["old"] = {int(old): conditions for old, conditions in layer["old"].items()}
        return cls(**own)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Result:
        """Read ``directory/result.json``; a sentence where no tables could be made of it."""
        path = Path(directory) / FILE_NAME
        try:
            result = cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
            wrong = first_wrong(result)
            if wrong is not None:
                raise ValueError(f"its '{wrong}' makes no sense")
        except OSError as error:
            raise CuberError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            advice = "remove it, and its run, run again, writes it anew"
            raise CuberError(f"{path} is damaged, or not the result of a run ({error}): {advice}") from error
        return result

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write ``directory/result.json``, all of it or nothing."""
        path = Path(directory) / FILE_NAME
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise CuberError(f"cannot write {path}: {error.strerror or error}") from error
        return path

    def __repr__(self) -> str:
        bwt = "" if self.bwt is None else f", BWT {format_number(self.bwt, '+.2f')}"
        learnt = len(metrics.diagonal(self.accuracy))
        stream = f"{self.benchmark}, {pluralize(learnt, 'task')}"
        return f"Result({self.method} on {stream}, seed {self.seed}: ACC {self.acc:.2f}{bwt})"


class UnwrittenResultError(CuberError):
    """A run has come to its end, but its result could not be written; it is here."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
