"""What came out of a run: everything that a table or a figure may want, as plain values."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuber import metrics
from cuber.errors import CuberError

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
    """``accuracy[i][j]`` is the test accuracy (percent) on task j after learning task i, None where j > i."""

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
    regimes: list[dict[str, dict[int, dict[str, Any]]]] = field(default_factory=list)
    """Task -> layer -> old task -> regime, and why."""
    history: list[list[Epoch]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """For learning each task, the tests after it not included."""
    bytes: list[dict[str, int]] = field(default_factory=list)
    """What the method keeps after each task, by kind."""
    pool: list[dict[str, dict[str, int]]] = field(default_factory=list)
    """Task -> layer -> how many directions are in its pool after the task (``size``), of how many (``dimension``)."""
    machine: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Why it may not be compared with others: what was left out, or is not as it should be."""

    @property
    def acc(self) -> float:
        """The mean accuracy over all tasks in the end."""
        return metrics.average_accuracy(self.accuracy)

    @property
    def bwt(self) -> float | None:
        """Backward transfer: the mean change of old tasks; None with one task."""
        return metrics.backward_transfer(self.accuracy)

    @property
    def forgetting(self) -> float | None:
        """The mean loss of old tasks against their best; None with one task."""
        return metrics.forgetting(self.accuracy)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON: None where a value is missing or not a number."""
        bare = self.accuracy_bare
        values = dataclasses.asdict(self) | {
            "acc": self.acc,
            "bwt": self.bwt,
            "forgetting": self.forgetting,
            "acc_bare": None if bare is None else metrics.average_accuracy(bare),
            "bwt_bare": None if bare is None else metrics.backward_transfer(bare),
        }
        first = ["benchmark", "method", "seed", "acc", "bwt", "forgetting", "accuracy"]
        return _plain({name: values[name] for name in [*first, *(name for name in values if name not in first)]})

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
        bwt = "" if self.bwt is None else f", BWT {self.bwt:+.2f}"
        tasks = f"{len(self.accuracy)} tasks" if len(self.accuracy) != 1 else "1 task"
        return f"Result({self.method} on {self.benchmark}, {tasks}, seed {self.seed}: ACC {self.acc:.2f}{bwt})"


def write_atomically(path: Path, text: str) -> None:
    """Put a file in its place only when it is complete and on disk."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    # mkstemp makes files for its owner alone; there is no way to ask for the mask but to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
