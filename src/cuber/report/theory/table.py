"""A sweep over angles as a table for the terminal, and in a few sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuber.core.encoding import encodable
from cuber.report.formatting import number

if TYPE_CHECKING:
    from cuber.theory.sweep import AngleResult, Sweep

SHOWN = 1e-5
"""Shares below this are shown as nothing, and count as neither won nor lost."""


def show_sweep(sweep: Sweep, console: Console) -> None:
    """Print everything that a sweep has to say."""
    first = sweep.results[0].tasks
    title = f"Rule 2 against rule 1 ({sweep.kind}, seed {sweep.seed}, {sweep.steps} steps)"
    console.print(Text(title, style="bold"))
    console.print(sweep_table(sweep, console.encoding))
    console.print(f"at 0 degrees H is {first.H} and B is {first.B}", highlight=False, soft_wrap=True)
    for sentence in sentences(sweep):
        console.print(sentence, highlight=False, soft_wrap=True)


def sweep_table(sweep: Sweep, encoding: str) -> Table:
    """A row for each angle: the definitions, the theorems' conditions, and who won."""
    table = Table(box=box.SIMPLE, padding=0, show_edge=False)
    for title in (
        "angle",
        "ratio",
        "cosine",
        "asked",
        "step",
        "1 (1)",
        "2 (1)",
        "2 (2)",
        "sharper",
        "joint %",
        "old %",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for station in sweep.results:
        tasks, correlation = station.tasks, station.theorem_1.condition("positive correlation")
        theorems = (station.theorem_1, station.theorem_2_1, station.theorem_2_2, station.theorem_2_2_sharper)
        table.add_row(
            encodable(f"{station.degrees:.0f}°", encoding),
            number(tasks.ratio),
            number(tasks.cosine, sign=True),
            number(correlation.asked) if correlation.asked <= 1 else "> 1",
            f"{station.by_rule_2.step_size:.1g}",
            *(Text("holds", style="green") if theorem.holds else Text("-") for theorem in theorems),
            _gain(station.advantage),
            _gain(station.backward_transfer),
        )
    return table


def sentences(sweep: Sweep) -> list[str]:
    """What the table says: what the theorems promise, what happened, and how much of it they did not promise."""
    joint = _counted(sweep, lambda s: s.advantage > SHOWN, lambda s: s.theorem_2_1.holds)
    old = _counted(
        sweep, lambda s: s.backward_transfer > SHOWN, lambda s: s.theorem_2_2.holds or s.theorem_2_2_sharper.holds
    )
    return [
        "ratio, cosine: definitions 1 and 2; asked: the cosine that theorem 1 needs; sharper: 2 (2) with k for k^1.5",
        f"joint: rule 2 ends with the lower joint loss at {joint}",
        f"old: rule 2 has improved the old task at {old}",
    ]


def _counted(sweep: Sweep, won: Callable[[AngleResult], bool], promised: Callable[[AngleResult], bool]) -> str:
    winners = [station for station in sweep.results if won(station)]
    unpromised = sum(not promised(station) for station in winners)
    return f"{len(winners)} of {len(sweep.results)} angles, {unpromised} of them without a theorem that says so"


def _gain(share: float) -> Text:
    style = "green" if share > SHOWN else "red" if share < -SHOWN else ""
    return Text(number(100 * share, sign=True), style=style)
