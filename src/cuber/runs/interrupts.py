"""Stop a run at a point from which it can be resumed, when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """A run was stopped by a signal, after a checkpoint was written."""

    def __init__(self, number: int, place: str) -> None:
        super().__init__(f"stopped {place}; the same command or call resumes it")
        self.signal = number


@contextmanager
def recorded_signals() -> Iterator[list[int]]:
    """Record SIGINT and SIGTERM in a list instead of obeying them; a second Ctrl-C interrupts at once."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    in_main_thread = threading.current_thread() is threading.main_thread()  # others cannot set handlers
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    handlers = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
