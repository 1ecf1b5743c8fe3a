"""Loggers of others, each an extra: ``pip install 'cuber-learn[tensorboard]'``."""

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


class Curves(Logger):
    """What services have in common: numbers by name over a count of epochs, through all tasks."""

    extra = ""
    """Its name, and that of what must be installed for it."""

    def __init__(self) -> None:
        self.epochs = 0
        self._lost = False

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        self.epochs = position or 0
        try:
            self.open(config, position)
        except Exception as error:  # whatever a service may raise: no account, no server, a store it does not know
            raise CuberError(f"the {self.extra} logger cannot start: {_first_line(error)}") from error

    def close(self) -> None:
        self._try(self.end)

    def position(self) -> Any:
        return self.epochs

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        self.epochs += 1
        self.log({f"task {task}/{key}": value for key, value in values.items()}, self.epochs)

    def evaluation(self, task: int, accuracy: list[float | None]) -> None:
        known = [value for value in accuracy if value is not None]
        values = {f"accuracy/task {old}": value for old, value in enumerate(accuracy)}
        self.log({**values, "accuracy/mean": sum(known) / len(known)}, self.epochs)

    def log(self, values: dict[str, Any], step: int) -> None:
        """Hand on those values that are numbers."""
        numbers = {name: float(v) for name, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}
        self._try(lambda: self.send(numbers, step))

    def _try(self, act: Callable[[], None]) -> None:
        """A service that fails in the middle loses its curves, not the run: log.jsonl and metrics.csv have them all."""
        if self._lost:
            return
        try:
            act()
        except Exception as error:
            self._lost = True
            warnings.warn(f"{self.extra} gets nothing more: {_first_line(error)}", CuberWarning, stacklevel=2)

    def open(self, config: dict[str, Any], position: Any | None) -> None:
        """Begin with the service, or go on."""

    def end(self) -> None:
        """Be done with it."""

    def send(self, numbers: dict[str, float], step: int) -> None:
        """Give numbers to the service."""


class TensorBoard(Curves):
    """Event files in the run directory: ``tensorboard --logdir runs``."""

    extra = "tensorboard"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory / "tensorboard"
        self._library = _library("tensorboard", "torch.utils.tensorboard")
        self._writer: Any = None

    def open(self, config: dict[str, Any], position: Any | None) -> None:
        # What came after the checkpoint is about to come again: TensorBoard drops it when told where we begin.
        again = None if position is None else self.epochs + 1
        self._writer = self._library.SummaryWriter(str(self.directory), purge_step=again)

    def send(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases(Curves):
    """A run of Weights & Biases, the same one when resumed; project and account by its own environment variables."""

    extra = "wandb"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self._library = _library("wandb", "wandb")

    def open(self, config: dict[str, Any], position: Any | None) -> None:
        known = self.directory / "wandb-run"
        identity = _known(known, position) or uuid.uuid4().hex[:8]
        known.write_text(identity)
        where, name = str(self.directory), self.directory.name
        self._library.init(dir=where, name=name, id=identity, resume="allow", config=config)

    def send(self, numbers: dict[str, float], step: int) -> None:
        self._library.log(numbers, step=step)

    def end(self) -> None:
        self._library.finish()


class MLflow(Curves):
    """A run of MLflow, the same one when resumed; where it goes is MLflow's to say (``MLFLOW_TRACKING_URI``)."""

    extra = "mlflow"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self._library = _library("mlflow", "mlflow")

    def open(self, config: dict[str, Any], position: Any | None) -> None:
        known = self.directory / "mlflow-run"
        earlier = _known(known, position)
        run = self._library.start_run(run_id=earlier, run_name=None if earlier else self.directory.name)
        known.write_text(run.info.run_id)
        if earlier is None:
            self._library.log_params({f"{table}.{key}": v for table, part in config.items() for key, v in part.items()})

    def send(self, numbers: dict[str, float], step: int) -> None:
        self._library.log_metrics(numbers, step=step)

    def end(self) -> None:
        self._library.end_run()


LOGGERS: dict[str, type[Any]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}

LEFTOVERS = ("tensorboard", "wandb", "wandb-run", "mlflow-run")
"""What they put into the directory of a run."""


def make_logger(name: str, directory: Path) -> Logger:
    """The logger of that name for a run directory."""
    if name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    return LOGGERS[name](directory)


def _known(file: Path, position: Any | None) -> str | None:
    """The service's name for the run that is being resumed."""
    return file.read_text() if position is not None and file.exists() else None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _library(extra: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CuberError(f"the {extra} logger needs pip install 'cuber-learn[{extra}]' ({error})") from error
