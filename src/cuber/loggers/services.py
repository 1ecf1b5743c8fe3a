"""Loggers for services, each an extra: ``pip install 'cuber-learn[tensorboard]'``."""

from __future__ import annotations

import importlib
import math
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuber.errors import CuberError, CuberWarning, unknown
from cuber.loggers.logger import Logger


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
        try:
            self.library: Any = importlib.import_module(self.module)
        except ImportError as error:
            needed = f"pip install 'cuber-learn[{self.extra}]'"
            raise CuberError(f"the {self.extra} logger needs {needed} ({error})") from error

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        self.epochs = position or 0
        try:
            self.open(config, position)
        except Exception as error:  # of any kind: no account, no server
            raise CuberError(f"the {self.extra} logger cannot start: {_first_line(error)}") from error

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
        self._try(lambda: self.send(numbers, self.epochs))

    def _try(self, call: Callable[[], None]) -> None:
        """Call the service; after its first failure warn, and do not call it again: the files have all values."""
        if self._failed:
            return
        try:
            call()
        except Exception as error:
            self._failed = True
            message = f"{self.extra} failed and gets no more values: {_first_line(error)}"
            warnings.warn(message, CuberWarning, stacklevel=2)

    def open(self, config: dict[str, Any], position: Any | None) -> None:
        """Begin a run of the service, or resume it."""

    def send(self, numbers: dict[str, float], step: int) -> None:
        """Send numbers."""

    def end(self) -> None:
        """End the run of the service."""


class TensorBoard(ServiceLogger):
    """Event files in the run directory: ``tensorboard --logdir runs``."""

    extra, module = "tensorboard", "torch.utils.tensorboard"
    writer: Any = None

    def open(self, config: dict[str, Any], position: Any | None) -> None:
        # TensorBoard drops what was logged after the checkpoint, from purge_step on.
        purge_step = None if position is None else self.epochs + 1
        self.writer = self.library.SummaryWriter(str(self.directory / "tensorboard"), purge_step=purge_step)

    def send(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def end(self) -> None:
        if self.writer is not None:
            self.writer.close()


class WeightsAndBiases(ServiceLogger):
    """A run of Weights & Biases; its own environment variables choose project and account."""

    extra, module = "wandb", "wandb"

    def open(self, config: dict[str, Any], position: Any | None) -> None:
        if position is None or not self.identity.exists():
            self.identity.write_text(uuid.uuid4().hex[:8])
        where, name = str(self.directory), self.directory.name
        self.library.init(dir=where, name=name, id=self.identity.read_text(), resume="allow", config=config)

    def send(self, numbers: dict[str, float], step: int) -> None:
        self.library.log(numbers, step=step)

    def end(self) -> None:
        self.library.finish()


class MLflow(ServiceLogger):
    """A run of MLflow; ``MLFLOW_TRACKING_URI`` chooses the server."""

    extra, module = "mlflow", "mlflow"

    def open(self, config: dict[str, Any], position: Any | None) -> None:
        if position is not None and self.identity.exists():
            self.library.start_run(run_id=self.identity.read_text())
            return
        self.identity.write_text(self.library.start_run(run_name=self.directory.name).info.run_id)
        self.library.log_params({f"{table}.{key}": v for table, part in config.items() for key, v in part.items()})

    def send(self, numbers: dict[str, float], step: int) -> None:
        self.library.log_metrics(numbers, step=step)

    def end(self) -> None:
        self.library.end_run()


LOGGERS: dict[str, type[ServiceLogger]] = {kind.extra: kind for kind in (TensorBoard, WeightsAndBiases, MLflow)}

SERVICE_FILES = ("tensorboard", "wandb", "wandb-run", "mlflow-run")
"""Files of these loggers in a run directory."""


def make_logger(name: str, directory: Path) -> Logger:
    """Return the logger of a service for a run directory."""
    if name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    return LOGGERS[name](directory)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
