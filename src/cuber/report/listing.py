"""The catalogue, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from cuber.experiments.listing import Entry


def show_catalogue(benchmarks: list[Entry], methods: list[Entry], console: Console) -> None:
    """Print what there is to run."""
    console.print(Text("Benchmarks, and how they are trained", style="bold"))
    for entry in benchmarks:
        _show(entry, console)
    console.print()
    console.print(Text("Methods, and their settings (--set name=value)", style="bold"))
    for entry in methods:
        _show(entry, console)


def _show(entry: Entry, console: Console) -> None:
    console.print()
    console.print(Padding(Text.assemble((entry.name, "bold cyan"), f"  {entry.help}"), (0, 0, 0, 2)))
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, default, what in entry.settings:
        table.add_row(Text(name), Text(default, style="green"), Text(what))
    if entry.inherits is not None:
        table.add_row(Text(f"and those of {entry.inherits}", style="dim"))
    if table.row_count:
        console.print(Padding(table, (0, 0, 0, 4)))
