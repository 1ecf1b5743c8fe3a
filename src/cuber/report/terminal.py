"""Print results, outcomes of grids, benchmarks and methods in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cuber import metrics
from cuber.core.formatting import format_number, pluralize
from cuber.report.typography import NO_BREAK, VISIBLE, memory_text

if TYPE_CHECKING:
    from cuber.experiments.campaign import JobStatus
    from cuber.experiments.listing import Entry
    from cuber.training import Result

MOST_COLUMNS = 10


# Results


def show_result(result: Result, console: Console) -> None:
    """Print accuracies, regimes and summary; at most 80 columns wide, and readable without colors."""
    console.print()
    title = f"Test {result.metric.title} ({result.method} on {result.benchmark}, seed {result.seed})"
    console.print(Text(title, style="bold"))
    console.print(_accuracy_table(result))
    regimes = _regimes_table(result)
    if regimes is not None:
        title = "Regimes of the old tasks in each layer (@n: demoted from 3 to 2 after epoch n)"
        console.print(Text(title, style="bold"))
        console.print(regimes)
    if result.predictions:
        console.print(
            Text(f"Old tasks: predicted change of their losses, measured change of their {result.metric.name}", "bold")
        )
        console.print(_predictions_table(result))
    show_summary(result, console)


def show_summary(result: Result, console: Console) -> None:
    """Print ACC, BWT, forgetting, time, memory and notes."""
    lines = [Text(f"{_figures(result.accuracy, result.metric)}  time {sum(result.seconds):.1f} s", style="bold")]
    others = {"the inferred task": result.accuracy_inferred, "the task not told": result.accuracy_bare}
    for what, matrix in others.items():
        if matrix is not None:
            lines.append(Text(f"{_figures(matrix, result.metric)}  with {what}"))
    kinds = ", ".join(f"{kind} {memory_text(size)}" for kind, size in result.bytes[-1].items() if size)
    total = memory_text(sum(result.bytes[-1].values()))
    lines.append(Text(f"memory {total}{f' ({kinds})' if kinds else ''}".replace(NO_BREAK, " ")))
    if result.boundaries is not None:
        lines += map(Text, boundary_lines(result.boundaries))
    if result.notes:
        lines.append(Text(f"note: {'; '.join(result.notes)}", style="yellow"))
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def boundary_lines(boundaries: dict[str, Any]) -> list[str]:
    """Describe which changes of task were noticed, with what delay, and what the tasks of the stream were taken for."""
    changes, delays = boundaries["changes"], boundaries["delays"]
    noticed = [delay for delay in delays if delay is not None]
    slowest = f" (in batch {max(noticed) + 1} after it or earlier)" if noticed else ""
    drifts = sum(each["kind"] == "drift" for each in boundaries["found"])
    alarms = pluralize(boundaries["false_alarms"], "false alarm")
    taken = ", ".join(f"{position} as {task}" for position, task in enumerate(boundaries["answers"]))
    return [
        f"boundaries: {len(noticed)} of {len(changes)} changes noticed{slowest}; "
        f"{alarms}, {pluralize(drifts, 'drift')}",
        f"tasks of the stream, and the numbers under which they were learned: {taken}",
    ]


def _figures(matrix: metrics.Matrix, metric: metrics.Measure) -> str:
    oriented = metric.oriented(matrix)
    bwt, forgetting = metrics.backward_transfer(oriented), metrics.forgetting(oriented)
    change = "-" if bwt is None else format_number(bwt, f"+{metric.form}")
    lost = "-" if forgetting is None else f"{forgetting:{metric.form}}"
    mean = f"{metrics.average_accuracy(matrix):{metric.form}}{f' {metric.unit}' if metric.unit else ''}"
    return f"{metric.short} {mean}  BWT {change}  forgetting {lost}"


def _accuracy_table(result: Result) -> Table:
    """One row after each task and one column per task, or one row per task where there are many."""
    metric, own = result.metric, metrics.diagonal(result.accuracy)
    old = range(metrics.old_tasks(result.accuracy))
    gains = [metric.gain(own[task], result.accuracy[-1][task] or 0.0) for task in old]
    changes = [Text(f"{format_number(gain, f'+{_form(metric)}')} ", style=_style(gain, metric)) for gain in gains]
    show = partial(_value, metric)
    titles = {"task not told": result.accuracy_bare, "task inferred": result.accuracy_inferred}
    others = {title: list(map(show, matrix[-1])) for title, matrix in titles.items() if matrix is not None}
    names = [Text(f"{task} {about['name']}") for task, about in enumerate(result.tasks)]
    if len(own) > MOST_COLUMNS:
        final = list(map(show, result.accuracy[-1], own))
        learned = list(map(show, own)) if changes else []
        columns = {"task": names, "when learned": learned, "final": final, "change": changes, **others}
        shown = {title: cells for title, cells in columns.items() if cells}
        table = _table(*shown)
        for line in zip_longest(*shown.values(), fillvalue=Text("")):
            table.add_row(*line)
        return table
    table = _table("after task", *(f"{task} " for task in range(len(own))))
    table.columns[0].max_width = 18
    after = names if len(result.accuracy) == len(own) else [Text("all tasks")]
    for name, row in zip(after, result.accuracy, strict=False):
        table.add_row(name, *map(show, row, own))
    table.add_section()
    for title, cells in {"change": changes, **others}.items():
        if cells:
            table.add_row(title, *cells)
    return table


def _value(metric: metrics.Measure, value: float | None, own: float | None = None) -> Text:
    """A value, with a sign and a color where it has become better or worse since the task was learned."""
    if value is None:
        return Text("")
    style = _style(0.0 if own is None else metric.gain(own, value), metric)
    return Text(f"{value:{_form(metric)}}{SIGNS[style]}", style=style)


def _form(metric: metrics.Measure) -> str:
    """One decimal of a percentage."""
    return ".1f" if metric.unit else metric.form


SIGNS = {"green": "+", "red": "-", "": " "}


def _style(gain: float, metric: metrics.Measure) -> str:
    visible = VISIBLE if metric.unit else 0.0
    return "green" if gain > 0 and gain >= visible else "red" if gain < 0 and gain <= -visible else ""


def _regimes_table(result: Result) -> Table | None:
    """The old tasks in each regime by new task and layer; None if all were in regime 1."""
    rows = [(task, layer, old) for task, layers in enumerate(result.regimes) for layer, old in layers.items() if old]
    if all(regime["regime"] == 1 for _, _, by_task in rows for regime in by_task.values()):
        return None
    table = Table("task", "layer", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.columns[0].justify = "right"
    table.columns[1].max_width = 24
    table.columns[1].no_wrap = True
    for title in ("1: protected", "2: reused", "3: may improve"):
        table.add_column(title)
    shown = None
    for task, layer, by_task in rows:
        old = ([_old(name, regime) for name, regime in by_task.items() if regime["regime"] == n] for n in (1, 2, 3))
        table.add_row("" if task == shown else str(task), layer, *map(", ".join, old))
        shown = task
    return table


def _predictions_table(result: Result) -> Table:
    """What each task was predicted to change in the losses of old tasks, beside the change of their accuracies."""
    metric = result.metric
    table = _table("new task", "  sum of old losses", f"  mean {metric.name} of old tasks")
    for task, predicted in list(enumerate(result.predictions))[1:]:
        change = metrics.change_of_old_tasks(result.oriented, task) or 0.0
        measured = Text(format_number(change, f"+{metric.form}"), _style(change, metric))
        table.add_row(str(task), format_number(predicted, "+.3f"), measured)
    return table


def _old(task: int, regime: dict[str, Any]) -> str:
    return str(task) if regime["demoted_at"] is None else f"{task}@{regime['demoted_at']}"


def _table(first: str, *numbers: str) -> Table:
    """A table with a column of names and columns of numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column(first, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


# Grids


def show_outcome(jobs: Sequence[JobStatus], out: Path, console: Console) -> None:
    """Print the number of finished runs, and why the others failed."""
    finished = sum(job.state == "finished" for job in jobs)
    where = f"; cuber compare {out} shows them" if finished else ""
    lines = [f"{finished} of {len(jobs)} runs finished{where}"]
    for job in jobs:
        if job.state in ("failed", "refused", "stopped"):
            lines.append(f"{job.name}: {job.state}: {job.message}".rstrip(": "))
    if any(job.state == "failed" for job in jobs):
        lines.append("the same command with --retry runs the failed ones again")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


# Benchmarks and methods


def show_catalogue(benchmarks: list[Entry], methods: list[Entry], console: Console) -> None:
    """Print all benchmarks and methods with their settings."""
    training, settings = "Benchmarks, and how they are trained", "Methods, and their settings (--set name=value)"
    for title, entries in ((training, benchmarks), (settings, methods)):
        console.print(Text(title, style="bold"))
        for entry in entries:
            console.print()
            console.print(Padding(Text.assemble((entry.name, "bold cyan"), f"  {entry.help}"), (0, 0, 0, 2)))
            table = Table.grid(padding=(0, 2, 0, 0))
            for name, default, what in entry.settings:
                table.add_row(Text(name), Text(default, style="green"), Text(what))
            if entry.inherits is not None:
                table.add_row(Text(f"and those of {entry.inherits}", style="dim"))
            if table.row_count:
                console.print(Padding(table, (0, 0, 0, 4)))
        console.print()
