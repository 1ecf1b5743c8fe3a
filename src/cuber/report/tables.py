"""A result as tables for the terminal, 80 columns wide if it must be, readable without colours too."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuber import metrics
from cuber.core.formatting import format_number

if TYPE_CHECKING:
    from cuber.training import Result

NOTICEABLE = 0.05
"""Changes below this do not show in a figure with one decimal."""
MOST_COLUMNS = 10
MOST_ROWS = 40


def show_result(result: Result, console: Console) -> None:
    """Print everything that a result has to say."""
    console.print()
    console.print(Text(f"Test accuracy in % ({result.method} on {result.benchmark}, seed {result.seed})", style="bold"))
    console.print(accuracy_table(result))
    regimes = regimes_table(result)
    if regimes is not None:
        console.print(Text("Regimes of the old tasks in each layer (@n: fell from 3 to 2 after epoch n)", style="bold"))
        console.print(regimes)
    show_summary(result, console)


# Figures


def show_summary(result: Result, console: Console) -> None:
    """Print the figures alone."""
    for line in summary(result):
        console.print(line, highlight=False, soft_wrap=True)


def summary(result: Result) -> list[Text]:
    """ACC, BWT, forgetting and time in a line, memory in another, and what must be known of the data."""
    measured = figures(result.acc, result.bwt, result.forgetting)
    lines = [Text(f"{measured}  time {sum(result.seconds):.1f} s", style="bold")]
    bare = result.accuracy_bare
    if bare is not None:
        told = figures(metrics.average_accuracy(bare), metrics.backward_transfer(bare), metrics.forgetting(bare))
        lines.append(Text(f"{told}  with bare weights (nobody says which task it is)"))
    kinds = ", ".join(f"{kind} {amount(size)}" for kind, size in result.bytes[-1].items() if size)
    lines.append(Text(f"memory {amount(sum(result.bytes[-1].values()))}" + (f" ({kinds})" if kinds else "")))
    if result.notes:
        lines.append(Text(f"note: {'; '.join(result.notes)}", style="yellow"))
    return lines


def figures(acc: float, bwt: float | None, forgetting: float | None) -> str:
    """The three figures; a dash where there is no old task to speak of."""
    change = "-" if bwt is None else format_number(bwt, "+.2f")
    lost = "-" if forgetting is None else f"{forgetting:.2f}"
    return f"ACC {acc:.2f} %  BWT {change}  forgetting {lost}"


def amount(size: int) -> str:
    """Bytes in words.

    >>> amount(2048)
    '2.0 kB'
    """
    return "0" if size == 0 else f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


# Accuracies


def accuracy_table(result: Result) -> Table:
    """Test accuracies: a row after each task and a column for each task, or a row for each where they are many."""
    own = metrics.diagonal(result.accuracy)
    if len(own) > MOST_COLUMNS:
        return _long_table(result, own)
    table = _table()
    table.add_column("after task", no_wrap=True, max_width=18, overflow="ellipsis")
    for task in range(len(own)):
        table.add_column(f"{task} ", justify="right", no_wrap=True)
    at_once = len(own) > len(result.accuracy)
    for learnt, row in enumerate(result.accuracy):
        name = "all tasks" if at_once else _name(result, learnt)
        table.add_row(name, *(_accuracy(value, before) for value, before in zip(row, own, strict=False)))
    table.add_section()
    if changes := _changes(result, own):
        table.add_row("change", *changes)
    if result.accuracy_bare is not None:
        table.add_row("bare weights", *map(_accuracy, result.accuracy_bare[-1]))
    return table


def _long_table(result: Result, own: list[float]) -> Table:
    """A row for each task; how it was when learnt is told where that is not the end."""
    columns = {"task": [Text(_name(result, task)) for task in range(len(own))]}
    changes = _changes(result, own)
    if changes:
        columns["when learnt"] = list(map(_accuracy, own))
    columns["in the end"] = list(map(_accuracy, result.accuracy[-1], own))
    if changes:
        columns["change"] = changes
    if result.accuracy_bare is not None:
        columns["bare weights"] = list(map(_accuracy, result.accuracy_bare[-1]))
    table = _table()
    for title in columns:
        table.add_column(title, justify="left" if title == "task" else "right", no_wrap=True)
    for row in zip_longest(*columns.values(), fillvalue=Text("")):
        table.add_row(*row)
    return table


def _changes(result: Result, own: list[float]) -> list[Text]:
    """What became of each old task."""
    return [_change(result.accuracy[-1][task], own[task]) for task in range(metrics.old_tasks(result.accuracy))]


def _accuracy(value: float | None, own: float | None = None) -> Text:
    """An accuracy, with a sign and a colour where it has changed since the task was learnt."""
    if value is None:
        return Text("")
    change = 0.0 if own is None else value - own
    sign = "+" if change >= NOTICEABLE else "-" if change <= -NOTICEABLE else " "
    return Text(f"{value:.1f}{sign}", style=_style(change))


def _change(value: float | None, own: float) -> Text:
    change = 0.0 if value is None else value - own
    return Text(f"{format_number(change, '+.1f')} ", style=_style(change))


def _style(change: float) -> str:
    return "green" if change >= NOTICEABLE else "red" if change <= -NOTICEABLE else ""


def _name(result: Result, task: int) -> str:
    return f"{task} {result.tasks[task]['name']}"


# Regimes


def regimes_table(result: Result) -> Table | None:
    """Which old tasks were only protected, reused or improved in each layer; counts where that is too much to read.

    None where there is nothing to tell: no regimes, or only the first.
    """
    rows = [(task, layer, by_task) for task, layers in enumerate(result.regimes) for layer, by_task in layers.items()]
    rows = [row for row in rows if row[2]]
    if all(regime["regime"] == 1 for _, _, by_task in rows for regime in by_task.values()):
        return None
    if len(rows) > MOST_ROWS:
        return _regime_counts(rows)
    table = _table(gap=2)
    table.add_column("task", justify="right")
    table.add_column("layer", no_wrap=True, overflow="ellipsis", max_width=24)
    for title in ("1: protected", "2: reused", "3: may improve"):
        table.add_column(title)
    shown = None
    for task, layer, by_task in rows:
        table.add_row("" if task == shown else str(task), layer, *(_old_tasks(by_task, n) for n in (1, 2, 3)))
        shown = task
    return table


def _old_tasks(by_task: dict[int, dict[str, Any]], number: int) -> Text:
    names = [
        f"{old}@{regime['fell']}" if regime["fell"] is not None else str(old)
        for old, regime in by_task.items()
        if regime["regime"] == number
    ]
    return Text(", ".join(names), style="green" if number == 3 else "")


def _regime_counts(rows: list[tuple[int, str, dict[int, dict[str, Any]]]]) -> Table:
    table = _table(gap=2)
    table.add_column("layer", no_wrap=True, overflow="ellipsis", max_width=40)
    for title in ("1: protected", "2: reused", "3: may improve", "fell from 3 to 2"):
        table.add_column(title, justify="right")
    for layer in dict.fromkeys(layer for _, layer, _ in rows):
        regimes = [regime for _, name, by_task in rows if name == layer for regime in by_task.values()]
        counts = [sum(regime["regime"] == number for regime in regimes) for number in (1, 2, 3)]
        fallen = sum(regime["fell"] is not None for regime in regimes)
        table.add_row(layer, *map(str, counts), str(fallen))
    return table


def _table(gap: int = 1) -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0))
