"""Stop a run at a point from which it can be resumed, when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run was stopped by a signal, after a checkpoint was written."""

    def __init__(self, number: int, place: str) -> None:
        super().__init__(f"stopped {place}; the same command or call resumes it")
        self.signal = number


class Interrupts:
    """The first signal received, if any; a second Ctrl-C raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number


@contextmanager
def catch_signals() -> Iterator[Interrupts]:
    """Record signals instead of obeying them; only possible in the main thread."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before: dict[int, Any] = {number: signal.signal(number, interrupts.receive) for number in SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
