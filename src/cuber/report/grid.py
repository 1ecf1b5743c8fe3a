"""A grid, watched: a live table in a terminal, a line for each change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table


class Row(Protocol):
    """What is shown of a run; see ``cuber.experiments.campaign.JobStatus``."""

    state: str
    message: str
    done: float

    @property
    def name(self) -> str: ...

    def seconds_left(self, now: float) -> float | None: ...


class GridLines:
    """A line whenever a run begins or ends: for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._told: dict[str, str] = {}

    def __enter__(self) -> GridLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if self._told.get(row.name, "waiting") != row.state:
                self._told[row.name] = row.state
                self.console.print(f"{row.name}: {row.state}  {row.message}".rstrip(), markup=False, soft_wrap=True)


class GridTable:
    """All runs in a table that is redrawn; the finished ones, where they are many, as a number."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> GridTable:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, rows: Sequence[Row]) -> None:
        self._live.update(table_of(rows, time.monotonic(), self.console.height - 4), refresh=True)


def table_of(rows: Sequence[Row], now: float, height: int) -> Table:
    """How every run stands, those at work first where not all fit."""
    table = Table(box=None, header_style="bold")
    for title in ("run", "state", "done", "left"):
        table.add_column(title, justify="right" if title in ("done", "left") else "left")
    order = ("running", "failed", "refused", "stopped", "waiting", "finished")
    shown = sorted(rows, key=lambda row: order.index(row.state))[: max(height, 5)] if len(rows) > height else rows
    for row in shown:
        left = row.seconds_left(now)
        table.add_row(row.name, row.state, f"{row.done:.0%}", "" if left is None else duration(left))
    counts = {state: sum(row.state == state for row in rows) for state in order}
    table.caption = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return table


def show_outcome(rows: Sequence[Row], out: Path, console: Console) -> None:
    """What came of the grid, failures last and in full."""
    finished = sum(row.state == "finished" for row in rows)
    where = f"; cuber compare {out} shows them" if finished else ""
    console.print(f"{finished} of {len(rows)} runs finished{where}", markup=False, soft_wrap=True)
    for row in rows:
        if row.state in ("failed", "refused", "stopped"):
            console.print(f"{row.name}: {row.state}: {row.message}".rstrip(": "), markup=False, soft_wrap=True)
    if any(row.state == "failed" for row in rows):
        console.print("the same command with --retry tries the failed ones again", markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """In the largest units that say something.

    >>> duration(42), duration(754), duration(7380)
    ('42 s', '12 min 34 s', '2 h 3 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
