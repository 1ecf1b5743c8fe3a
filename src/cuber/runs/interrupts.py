"""Signals that ask a run to stop: it stops where it can go on later."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Somebody asked a run to stop, and it has written a checkpoint."""

    def __init__(self, number: int, place: str) -> None:
        super().__init__(f"stopped {place}; the same again goes on from there")
        self.signal = number


class Interrupts:
    """Whether somebody has asked to stop; who presses Ctrl-C again is in a hurry, and it is over at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def ask(self, number: int, frame: FrameType | None) -> None:
        """A signal has come."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number


@contextmanager
def listening() -> Iterator[Interrupts]:
    """While open, signals are noted instead of obeyed; outside of the main thread they are not ours to take."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before: dict[int, Any] = {number: signal.signal(number, interrupts.ask) for number in SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
