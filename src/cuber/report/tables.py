"""A result as tables for the terminal, 80 columns wide if it must be, readable without colours too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuber import metrics

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
    change = "-" if bwt is None else f"{bwt:+.2f}"
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
    own, tasks = metrics.diagonal(result.accuracy), len(result.accuracy)
    table = _table()
    last = result.accuracy[-1]
    bare = None if result.accuracy_bare is None else result.accuracy_bare[-1]
    changes = [_change(last[task], own[task]) for task in range(tasks - 1)]
    if tasks > MOST_COLUMNS:
        for title in ("task", "when learnt", "in the end", "change", *(["bare weights"] if bare else [])):
            table.add_column(title, justify="left" if title == "task" else "right", no_wrap=True)
        for task in range(tasks):
            change = changes[task] if task < len(changes) else Text("")
            cells = [_accuracy(own[task]), _accuracy(last[task], own[task]), change]
            table.add_row(_name(result, task), *cells, *([_accuracy(bare[task])] if bare else []))
        return table
    table.add_column("after task", no_wrap=True, max_width=18, overflow="ellipsis")
    for task in range(tasks):
        table.add_column(f"{task} ", justify="right", no_wrap=True)
    for learnt, row in enumerate(result.accuracy):
        table.add_row(_name(result, learnt), *(_accuracy(row[task], own[task]) for task in range(learnt + 1)))
    table.add_section()
    if changes:
        table.add_row("change", *changes)
    if bare is not None:
        table.add_row("bare weights", *map(_accuracy, bare))
    return table


def _accuracy(value: float | None, own: float | None = None) -> Text:
    """An accuracy, with a sign and a colour where it has changed since the task was learnt."""
    if value is None:
        return Text("")
    change = 0.0 if own is None else value - own
    sign = "+" if change >= NOTICEABLE else "-" if change <= -NOTICEABLE else " "
    return Text(f"{value:.1f}{sign}", style=_style(change))


def _change(value: float | None, own: float) -> Text:
    change = 0.0 if value is None else value - own
    return Text(f"{change:+.1f} " if abs(change) >= NOTICEABLE else "0.0 ", style=_style(change))


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
