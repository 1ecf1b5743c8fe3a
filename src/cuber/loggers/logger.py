"""The interface of loggers."""

from __future__ import annotations

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
