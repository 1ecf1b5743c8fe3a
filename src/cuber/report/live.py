"""Progress of runs and grids: bars and tables in a terminal, lines in pipes and logs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from cuber.report.typography import time_unit

if TYPE_CHECKING:
    from cuber.experiments.campaign import JobStatus
    from cuber.training import ProgressEvent

SECONDS_PER_REFRESH = 0.1
STATES = ("running", "failed", "refused", "stopped", "elsewhere", "waiting", "finished")
"""Order in which a table that does not fit shows its rows."""


class _Printer(nullcontext[Any]):
    """Context manager that returns itself."""

    def __init__(self, console: Console) -> None:
        super().__init__(self)
        self.console = console
        self._shown: dict[str, str] = {}


# Runs


class Lines(_Printer):
    """Print one line per finished task."""

    def __call__(self, event: ProgressEvent) -> None:
        if event.finished:
            self.console.print(f"{_title(event)}  {_figures(event)}", markup=False, highlight=False, soft_wrap=True)


class Bars(Progress):
    """Show one bar per task, refreshed by events: a thread would take time from the training."""

    def __init__(self, console: Console) -> None:
        bar = BarColumn(bar_width=None, complete_style="cyan", finished_style="green")
        columns = (
            TextColumn("{task.description}", markup=False),
            bar,
            TextColumn("{task.fields[figures]}", markup=False),
        )
        super().__init__(*columns, console=console, auto_refresh=False, expand=True)
        self._bars: dict[int | None, TaskID] = {}
        self._refreshed = 0.0

    def __call__(self, event: ProgressEvent) -> None:
        if event.task not in self._bars:
            self._bars[event.task] = self.add_task(_title(event), total=1.0, figures="")
        # Early stopping ends a task before its last epoch: the bar is full all the same.
        done = 1.0 if event.finished else event.epoch / event.epochs
        self.update(self._bars[event.task], completed=done, figures=_figures(event))
        now = time.monotonic()
        if event.finished or now - self._refreshed > SECONDS_PER_REFRESH:
            self.refresh()
            self._refreshed = now


def _title(event: ProgressEvent) -> str:
    """The task: "task 0  digits 0-3", or "all tasks"."""
    return event.name if event.task is None else f"task {event.task:{len(str(event.tasks - 1))}}  {event.name}"


def _figures(event: ProgressEvent) -> str:
    kind = "validation" if event.validated else "training"
    shown = ""
    if event.accuracy is not None:
        metric = event.metric
        value = f"{event.accuracy:5.1f} {metric.unit}" if metric.unit else f"{event.accuracy:{metric.form}}"
        shown = f"  {kind} {metric.name} {value}"
    return f"loss {event.loss:.3f}{shown}  {event.seconds:5.1f} s"


# Grids


class GridLines(_Printer):
    """Print one line when a run starts or ends."""

    def __call__(self, jobs: Sequence[JobStatus]) -> None:
        for job in jobs:
            if self._shown.get(job.name, "waiting") != job.state:
                self._shown[job.name] = job.state
                self.console.print(f"{job.name}: {job.state}  {job.message}".rstrip(), markup=False, soft_wrap=True)


class GridTable(Live):
    """Show all runs in a table, those first that run where not all fit."""

    def __init__(self, console: Console) -> None:
        super().__init__(console=console, auto_refresh=False)

    def __call__(self, jobs: Sequence[JobStatus]) -> None:
        table, height = Table("run", "state", "done", "left", box=None, header_style="bold"), self.console.height - 4
        by_state = sorted(jobs, key=lambda job: STATES.index(job.state))
        for job in by_state[: max(height, 5)] if len(jobs) > height else jobs:
            left = job.seconds_left(time.monotonic())
            unit, name = time_unit(left or 0)
            table.add_row(job.name, job.state, f"{job.done:.0%}", "" if left is None else f"{left / unit:.0f} {name}")
        counts = {state: sum(job.state == state for job in jobs) for state in STATES}
        table.caption = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        self.update(table, refresh=True)
