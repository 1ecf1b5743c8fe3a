"""The progress of a run: a bar per task on a terminal, a line per task elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

if TYPE_CHECKING:
    from cuber.training import ProgressEvent

SECONDS_PER_REFRESH = 0.1


class Lines:
    """A line for each finished task: for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, moment: ProgressEvent) -> None:
        if moment.finished:
            self.console.print(f"{title(moment)}  {figures(moment)}", markup=False, highlight=False, soft_wrap=True)


class Bars:
    """A bar for each task, redrawn when there is news: no thread that would take time from the training."""

    def __init__(self, console: Console) -> None:
        bar = BarColumn(bar_width=None, complete_style="cyan", finished_style="green")
        columns = (TextColumn("{task.description}", markup=False), bar, TextColumn("{task.fields[figures]}"))
        self.progress = Progress(*columns, console=console, auto_refresh=False, expand=True)
        self._bars: dict[int | None, TaskID] = {}
        self._refreshed = 0.0

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, moment: ProgressEvent) -> None:
        if moment.task not in self._bars:
            self._bars[moment.task] = self.progress.add_task(title(moment), total=1.0, figures="")
        # Early stopping ends a task before its last epoch: the bar is full all the same.
        done = 1.0 if moment.finished else moment.epoch / moment.epochs
        self.progress.update(self._bars[moment.task], completed=done, figures=figures(moment))
        now = time.monotonic()
        if moment.finished or now - self._refreshed > SECONDS_PER_REFRESH:
            self.progress.refresh()
            self._refreshed = now


def title(moment: ProgressEvent) -> str:
    """Which task it is: "task 0  digits 0-3", or that it is all of them."""
    if moment.task is None:
        return moment.name
    width = len(str(moment.tasks - 1))
    return f"task {moment.task:{width}}  {moment.name}"


def figures(moment: ProgressEvent) -> str:
    """How it goes: loss, accuracy, time."""
    kind = "validation" if moment.validated else "training"
    accuracy = "" if moment.accuracy is None else f"  {kind} accuracy {moment.accuracy:5.1f} %"
    return f"loss {moment.loss:.3f}{accuracy}  {moment.seconds:5.1f} s"
