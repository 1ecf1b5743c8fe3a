"""Stop a run at a point from which it can be resumed, when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run was stopped by a signal, after a checkpoint was written."""

    def __init__(self, number: int, place: str) -> None:
        super().__init__(f"stopped {place}; the same command or call resumes it")
        self.signal = number


class Interrupts:
    """Context manager that records signals instead of obeying them; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # others cannot set handlers
            self._handlers = {number: signal.signal(number, self._receive) for number in SIGNALS}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number
