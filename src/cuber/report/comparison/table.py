"""A table before it has a format: columns that know how to show their cells, and rows of plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuber.core.formatting import format_number
from cuber.report import statistics

NOTHING = "-"


@dataclass(frozen=True)
class Estimate:
    """A mean, and the standard deviation where there is one."""

    mean: float
    deviation: float | None = None
    printed: str = ""
    """As the paper has it, which gives some figures with more digits than others."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate | None:
        """The mean and the deviation of the values; None where there are none."""
        return cls(statistics.mean(values), statistics.deviation(values)) if values else None


@dataclass(frozen=True)
class Column:
    """One column: its heading, its name for programs, and how its cells are written."""

    heading: str
    name: str
    show: Callable[[Any], str]
    parts: Callable[[Any], dict[str, Any]]
    """The cell as plain values, by the ends of their names."""
    words: bool = False
    """Text, not numbers: to the left, and folded where there is no room."""
    long: bool = False
    """Text that needs more than one line."""

    def text(self, cell: Any) -> str:
        """The cell for people."""
        return NOTHING if cell is None else self.show(cell)

    def plain(self, cell: Any) -> dict[str, Any]:
        """The cell for programs: one value or several, each with its name."""
        return {self.name + end: value for end, value in self.parts(cell).items()}


Row = dict[str, Any]
"""Cells by the names of their columns; what is not there is not known."""


@dataclass
class Sheet:
    """One table."""

    kind: str
    """Which of the tables that there are."""
    benchmark: str
    """And what was left out of it."""
    title: str
    columns: list[Column]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    context: dict[str, str] = field(default_factory=dict)
    """What programs must know of all rows, and people read in the title or the headings."""

    @property
    def caption(self) -> str:
        """The title, with the benchmark."""
        return f"{self.title} on {self.benchmark}"

    def texts(self) -> list[list[str]]:
        """The rows for people."""
        return [[column.text(row.get(column.name)) for column in self.columns] for row in self.rows]

    def plain(self) -> list[dict[str, Any]]:
        """The rows for programs."""
        return [
            {name: value for column in self.columns for name, value in column.plain(row.get(column.name)).items()}
            for row in self.rows
        ]


def words(heading: str, name: str) -> Column:
    """A column of text."""
    return Column(heading, name, str, _whole, words=True)


def setting(name: str) -> Column:
    """A column of a setting's values, whatever they are."""
    return Column(name, name, lambda cell: f"{cell:g}" if isinstance(cell, float) else str(cell), _whole, words=True)


def number(heading: str, name: str, form: str = ".2f") -> Column:
    """A column of numbers, in Python's notation for formats."""
    return Column(heading, name, lambda cell: format_number(cell, form), _whole)


def estimate(heading: str, name: str, form: str = ".2f") -> Column:
    """A column of means with their deviations."""

    def show(cell: Estimate) -> str:
        spread = "" if cell.deviation is None else f"±{cell.deviation:{form.lstrip('+')}}"
        return cell.printed or format_number(cell.mean, form) + spread

    def parts(cell: Estimate | None) -> dict[str, Any]:
        return {"": None if cell is None else cell.mean, "_deviation": None if cell is None else cell.deviation}

    return Column(heading, name, show, parts)


def between(heading: str, name: str, form: str = "+.2f") -> Column:
    """A column of intervals."""

    def show(cell: tuple[float, float]) -> str:
        return "[" + ", ".join(format_number(end, form) for end in cell) + "]"

    def parts(cell: tuple[float, float] | None) -> dict[str, Any]:
        low, high = cell or (None, None)
        return {"_low": low, "_high": high}

    return Column(heading, name, show, parts)


def probability(heading: str, name: str) -> Column:
    """A column of p-values, of which the small ones are only said to be so."""
    return Column(heading, name, lambda p: "<0.001" if p < 0.001 else f"{p:.3f}", _whole)


def _whole(cell: Any) -> dict[str, Any]:
    return {"": cell}


VARIANT = words("variant", "variant")
SEEDS = number("n", "seeds", "d")
