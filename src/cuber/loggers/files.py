"""Loggers that write files, which a resumed run continues from where its checkpoint was made."""

from __future__ import annotations

import csv
import io
import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cuber.loggers.logger import Logger


class LineFile(Logger):
    """A file that grows by lines."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        """Begin a new file; or drop what was written after the checkpoint."""
        if position is None:
            self.path.write_text("")
        elif self.path.exists() and self.path.stat().st_size > position:
            os.truncate(self.path, position)

    def position(self) -> Any:
        return self.path.stat().st_size if self.path.exists() else 0

    def write(self, line: str) -> None:
        """Add a line, in one piece."""
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.write(line)


class JsonLines(LineFile):
    """``log.jsonl``: an object per line for each epoch, evaluation and event."""

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        self._object("epoch", {"task": task, "name": name, "epoch": number, **values})

    def evaluation(self, task: int, accuracy: list[float | None]) -> None:
        self._object("evaluation", {"task": task, "accuracy": accuracy})

    def event(self, name: str, values: dict[str, Any]) -> None:
        self._object(name, values)

    def _object(self, event: str, values: dict[str, Any]) -> None:
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.write(json.dumps({"event": event, "time": time, **values}) + "\n")


class CsvFile(LineFile):
    """``metrics.csv``: a row per epoch, for spreadsheets."""

    columns = (
        "task",
        "name",
        "epoch",
        "train_loss",
        "lr",
        "seconds",
        "validation_loss",
        "validation_accuracy",
        "train_accuracy",
    )

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        super().start(config, position)
        if not self.position():
            self._row(self.columns)

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        row = {"task": task, "name": name, "epoch": number, **values}
        self._row(row.get(column) for column in self.columns)

    def _row(self, values: Any) -> None:
        text = io.StringIO()
        csv.writer(text).writerow(values)
        self.write(text.getvalue())
