"""Tables of a report, independent of the output format: columns that format their cells, and rows of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuber.core.formatting import format_number
from cuber.report.model import Estimate, Variant
from cuber.report.typography import estimate_text, typeset

NOTHING = "-"


@dataclass(frozen=True)
class MarkedCell:
    """A cell of a page: its text, its CSS class (gain, loss, h0 to h8, r1 to r4) and its tooltip."""

    text: str = ""
    mark: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Column:
    """Heading of a column, its name in CSV and JSON, and the format of its cells."""

    heading: str
    name: str
    show: Callable[[Any], str] = str
    parts: Callable[[Any], dict[str, Any]] = lambda cell: {"": cell}
    """The values in CSV and JSON, by the suffixes of their names."""
    words: bool = False
    """Text, not numbers: left-aligned, and wrapped where it does not fit."""
    long: bool = False
    """Text of several lines."""
    hint: str = ""
    """Tooltip of the heading."""

    def text(self, value: Any) -> str:
        """The value as plain text."""
        return NOTHING if value is None else self.show(value)

    def cell(self, value: Any) -> MarkedCell:
        """The value as a cell of the page."""
        if isinstance(value, MarkedCell):
            return value
        return MarkedCell(str(value) if self.words and value is not None else typeset(self.text(value)))


Row = dict[str, Any]
"""Values by the names of their columns; a missing value is unknown."""


@dataclass
class Table:
    """One table, for any output format."""

    kind: str
    """Name for ``cuber compare --table``."""
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    benchmark: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    """Values that hold for all rows, for CSV and JSON; in text they are in the title or the headings."""
    footer: Row | None = None

    @property
    def caption(self) -> str:
        """The title with the benchmark."""
        return f"{self.title} on {self.benchmark}"

    def texts(self) -> list[list[str]]:
        """The rows as plain text."""
        return [[column.text(row.get(column.name)) for column in self.columns] for row in self.rows]

    def plain(self) -> list[dict[str, Any]]:
        """The rows as values for CSV and JSON."""
        parts = [[(c.name, c.parts(row.get(c.name))) for c in self.columns] for row in self.rows]
        return [{name + end: value for name, cell in row for end, value in cell.items()} for row in parts]

    def cells(self, row: Row) -> list[MarkedCell]:
        """One row as cells of the page."""
        return [column.cell(row.get(column.name)) for column in self.columns]


def words(heading: str, name: str) -> Column:
    """A column of text."""
    return Column(heading, name, words=True)


def setting(name: str) -> Column:
    """A column of a setting's values."""
    return Column(name, name, lambda value: f"{value:g}" if isinstance(value, float) else str(value), words=True)


def number(heading: str, name: str, form: str = ".2f") -> Column:
    """A column of numbers in a Python format."""
    return Column(heading, name, lambda value: format_number(value, form))


def estimate(heading: str, name: str, form: str = ".2f") -> Column:
    """A column of means with their deviations."""

    def parts(value: Estimate | None) -> dict[str, Any]:
        return {"": value and value.mean, "_deviation": value and value.deviation}

    return Column(heading, name, lambda value: estimate_text(value, form), parts)


def interval(heading: str, name: str, form: str = "+.2f") -> Column:
    """A column of confidence intervals."""

    def parts(value: tuple[float, float] | None) -> dict[str, Any]:
        return dict(zip(("_low", "_high"), value or (None, None), strict=True))

    return Column(heading, name, lambda ends: f"[{', '.join(format_number(end, form) for end in ends)}]", parts)


def probability(heading: str, name: str) -> Column:
    """A column of p-values."""
    return Column(heading, name, lambda p: "<0.001" if p < 0.001 else f"{p:.3f}")


def change(value: float, form: str = "+.1f") -> MarkedCell:
    """A change of an accuracy, marked as gain or loss where it is visible with one decimal."""
    mark = "gain" if value >= VISIBLE else "loss" if value <= -VISIBLE else ""
    return MarkedCell(typeset(format_number(value, form)), mark)


VISIBLE = 0.05
"""Smaller changes of an accuracy in percent do not show with one decimal."""
VARIANT = words("variant", "variant")
SEEDS = number("n", "seeds", "d")
VariantColumns = list[tuple[Column, Callable[[Variant], Any]]]


def variant_table(kind: str, title: str, variants: Sequence[Variant], columns: VariantColumns) -> Table:
    """A table with one row per variant; each column has a function that computes its value."""
    rows = [{"variant": variant.label, **{c.name: value(variant) for c, value in columns}} for variant in variants]
    return Table(kind, title, [VARIANT, *(column for column, _ in columns)], rows)
