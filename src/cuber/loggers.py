"""Loggers: files for every run; TensorBoard, Weights & Biases and MLflow where their extra is installed.

To write your own, subclass :class:`Logger` and override the methods that you need.
"""

from __future__ import annotations

import csv
import importlib
import json
import math
import os
import uuid
import warnings
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, TextIO

from cuber.errors import CuberError, CuberWarning, first_line, needs_extra, unknown

SERVICE_FILES = ("tensorboard", "wandb", "wandb-run", "mlflow-run")
"""Files of services in a run directory."""


class Logger:
    """Receives the events of a run as plain values; this base class ignores them.

    >>> class Printer(Logger):
    ...     def evaluation(self, task, accuracy):
    ...         print(f"after task {task}: {accuracy}")
    >>> Printer().evaluation(0, [97.5, None])
    after task 0: [97.5, None]
    """

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        """A run begins; or it resumes from a checkpoint in which ``position`` is what ``position()`` returned."""

    def position(self) -> Any:
        """Return a plain value for ``start``: events logged after it are repeated when the run resumes."""
        return None

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        """An epoch of a task ends, counted from 1; ``values`` has its losses, accuracies, learning rate and seconds."""

    def evaluation(self, task: int, accuracy: list[float | None]) -> None:
        """All tasks were tested after ``task``; ``accuracy`` is in percent, or the values of the run's metric.

        It is None for tasks that are not learned yet.
        """

    def event(self, name: str, values: dict[str, Any]) -> None:
        """Any other event: started, resumed, boundary, stopped, failed, finished."""

    def close(self) -> None:
        """The run ends or stops."""


def open_at_once(path: Path, mode: Literal["a", "w"]) -> TextIO:
    """Open a file to write lines; a pipe that no process reads is an OSError, instead of waiting for a reader."""

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
        if hasattr(os, "O_NONBLOCK"):
            os.set_blocking(descriptor, True)
        return descriptor

    return open(path, mode, encoding="utf-8", newline="", buffering=1, opener=opener)


class LineFile(Logger):
    """A file to which lines are appended; a resumed run cuts it to the length at its checkpoint."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        if position is None:
            self.open("w").close()
        elif self.position() > position:
            os.truncate(self.path, position)

    def position(self) -> Any:
        return self.path.stat().st_size if self.path.exists() else 0

    def open(self, mode: Literal["a", "w"] = "a") -> TextIO:
        """Open the file to append lines."""
        return open_at_once(self.path, mode)


class JsonLines(LineFile):
    """``log.jsonl``: one JSON object per epoch, evaluation and event."""

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        self.event("epoch", {"task": task, "name": name, "epoch": number, **values})

    def evaluation(self, task: int, accuracy: list[float | None]) -> None:
        self.event("evaluation", {"task": task, "accuracy": accuracy})

    def event(self, name: str, values: dict[str, Any]) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        with self.open() as file:
            file.write(json.dumps({"event": name, "time": now, **values}) + "\n")


class CsvFile(LineFile):
    """``metrics.csv``: one row per epoch."""

    columns = (
        *("task", "name", "epoch", "train_loss", "lr", "seconds"),
        *("validation_loss", "validation_accuracy", "train_accuracy"),
    )

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        super().start(config, position)
        if not self.position():
            self._row(self.columns)

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        row = {"task": task, "name": name, "epoch": number, **values}
        self._row(row.get(column) for column in self.columns)

    def _row(self, values: Iterable[Any]) -> None:
        with self.open() as file:
            csv.writer(file).writerow(values)


class ServiceLogger(Logger):
    """Base class of services: sends named numbers, with the total number of epochs as the step."""

    extra = ""
    """Name of the logger and of the extra to install."""
    module = ""
    """Module of the service's library."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.identity = directory / f"{self.extra}-run"  # holds the service's identifier of the run, to resume it
        self.epochs = 0
        self._failed = False
        with needs_extra(self.extra, f"the {self.extra} logger"):
            self.library: Any = importlib.import_module(self.module)

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        self.epochs = position or 0
        try:
            self.open(config, resumed=position is not None)
        except Exception as error:  # of any kind: no account, no server
            raise CuberError(f"the {self.extra} logger cannot start: {first_line(error)}") from error

    def position(self) -> Any:
        return self.epochs

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        self.epochs += 1
        self._log({f"task {task}/{key}": value for key, value in values.items()})

    def evaluation(self, task: int, accuracy: list[float | None]) -> None:
        known = [value for value in accuracy if value is not None]
        values = {f"accuracy/task {old}": value for old, value in enumerate(accuracy)}
        self._log({**values, "accuracy/mean": sum(known) / len(known)})

    def close(self) -> None:
        self._try(self.end)

    def _log(self, values: dict[str, Any]) -> None:
        numbers = {name: float(v) for name, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}
        self._try(lambda: self.send(numbers))

    def _try(self, call: Callable[[], None]) -> None:
        """Call the service; after its first failure warn, and do not call it again: the files have all values."""
        if self._failed:
            return
        try:
            call()
        except Exception as error:
            self._failed = True
            message = f"{self.extra} failed and gets no more values: {first_line(error)}"
            warnings.warn(message, CuberWarning, stacklevel=2)

    def open(self, config: dict[str, Any], *, resumed: bool) -> None:
        """Begin a run of the service, or resume it."""

    def send(self, numbers: dict[str, float]) -> None:
        """Send numbers, with ``self.epochs`` as the step."""

    def end(self) -> None:
        """End the run of the service; also called where ``open`` was not."""


class TensorBoard(ServiceLogger):
    """Event files in the run directory: ``tensorboard --logdir runs``."""

    extra, module = "tensorboard", "torch.utils.tensorboard"
    writer: Any = None

    def open(self, config: dict[str, Any], *, resumed: bool) -> None:
        # TensorBoard drops what was logged after the checkpoint, from purge_step on.
        purge_step = self.epochs + 1 if resumed else None
        self.writer = self.library.SummaryWriter(str(self.directory / "tensorboard"), purge_step=purge_step)

    def send(self, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, self.epochs)

    def end(self) -> None:
        if self.writer is not None:
            self.writer.close()


class WeightsAndBiases(ServiceLogger):
    """A run of Weights & Biases; its own environment variables choose project and account."""

    extra, module = "wandb", "wandb"

    def open(self, config: dict[str, Any], *, resumed: bool) -> None:
        if not (resumed and self.identity.exists()):
            self.identity.write_text(uuid.uuid4().hex[:8])
        where, name = str(self.directory), self.directory.name
        self.library.init(dir=where, name=name, id=self.identity.read_text(), resume="allow", config=config)

    def send(self, numbers: dict[str, float]) -> None:
        self.library.log(numbers, step=self.epochs)

    def end(self) -> None:
        self.library.finish()


class MLflow(ServiceLogger):
    """A run of MLflow; ``MLFLOW_TRACKING_URI`` chooses the server."""

    extra, module = "mlflow", "mlflow"

    def open(self, config: dict[str, Any], *, resumed: bool) -> None:
        if resumed and self.identity.exists():
            self.library.start_run(run_id=self.identity.read_text())
            return
        self.identity.write_text(self.library.start_run(run_name=self.directory.name).info.run_id)
        self.library.log_params({f"{table}.{key}": v for table, part in config.items() for key, v in part.items()})

    def send(self, numbers: dict[str, float]) -> None:
        self.library.log_metrics(numbers, step=self.epochs)

    def end(self) -> None:
        self.library.end_run()


LOGGERS: dict[str, type[ServiceLogger]] = {kind.extra: kind for kind in (TensorBoard, WeightsAndBiases, MLflow)}


def make_logger(name: str, directory: Path) -> Logger:
    """Return the logger of a service for a run directory."""
    if name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    return LOGGERS[name](directory)
