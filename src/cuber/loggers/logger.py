"""The one small interface of all loggers."""

from __future__ import annotations

from typing import Any


class Logger:
    """Is told what happens in a run, as plain values; does nothing with it."""

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        """A run begins; or goes on from a checkpoint, made when ``position`` was what our ``position()`` said."""

    def position(self) -> Any:
        """What we must be told to go on from here, as a plain value: what was logged later is about to happen again."""
        return None

    def epoch(self, task: int, name: str, number: int, values: dict[str, Any]) -> None:
        """An epoch of a task is over (counted from 1); loss, learning rate, seconds, and so on."""

    def evaluation(self, task: int, accuracy: list[float | None]) -> None:
        """All tasks have been tested after learning ``task``: their accuracies in percent, None for those to come."""

    def event(self, name: str, values: dict[str, Any]) -> None:
        """Anything else: resumed, stopped, finished."""

    def close(self) -> None:
        """The run is over, or stops here."""
