"""The interface of loggers, and those that write files."""

from __future__ import annotations

import csv
import io
import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


class Logger:
    """Receives the events of a run as plain values; this base class ignores them."""

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        """A run begins; or it resumes from a checkpoint in which ``position`` is what ``position()`` returned."""

    def position(self) -> Any:
        """Return a plain value for ``start``: events logged after it are repeated when the run resumes."""
        return None

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        """An epoch of a task ends, counted from 1; ``values`` has its losses, accuracies, learning rate and seconds."""

    def evaluation(self, task: int, accuracy: list[float | None]) -> None:
        """All tasks were tested after ``task``; ``accuracy`` is in percent, None for tasks not learned yet."""

    def event(self, name: str, values: dict[str, Any]) -> None:
        """Any other event: started, resumed, stopped, failed, finished."""

    def close(self) -> None:
        """The run ends or stops."""


class LineFile(Logger):
    """A file to which lines are appended; a resumed run continues it at the position of its checkpoint."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        if position is None:
            self.path.write_text("")
        elif self.path.exists() and self.path.stat().st_size > position:
            os.truncate(self.path, position)

    def position(self) -> Any:
        return self.path.stat().st_size if self.path.exists() else 0

    def write(self, line: str) -> None:
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.write(line)


class JsonLines(LineFile):
    """``log.jsonl``: one JSON object per epoch, evaluation and event."""

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        self.event("epoch", {"task": task, "name": name, "epoch": number, **values})

    def evaluation(self, task: int, accuracy: list[float | None]) -> None:
        self.event("evaluation", {"task": task, "accuracy": accuracy})

    def event(self, name: str, values: dict[str, Any]) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.write(json.dumps({"event": name, "time": now, **values}) + "\n")


class CsvFile(LineFile):
    """``metrics.csv``: one row per epoch."""

    columns = (
        *("task", "name", "epoch", "train_loss", "lr", "seconds"),
        *("validation_loss", "validation_accuracy", "train_accuracy"),
    )

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        super().start(config, position)
        if not self.position():
            self._row(dict(zip(self.columns, self.columns, strict=True)))

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        self._row({"task": task, "name": name, "epoch": number, **values})

    def _row(self, values: dict[str, Any]) -> None:
        text = io.StringIO()
        csv.DictWriter(text, self.columns, extrasaction="ignore").writerow(values)
        self.write(text.getvalue())
