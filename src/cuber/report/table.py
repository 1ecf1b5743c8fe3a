"""Tables of `cuber compare`, independent of the output format: columns that format their cells, and rows of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from cuber.core.formatting import format_number
from cuber.report.model import Estimate
from cuber.report.typography import estimate_text


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
    over: str = ""
    """A heading over this column and its neighbors with the same one."""
    higher_is_better: bool | None = None
    """Which of its values is the best; None: no value is better than another."""

    def text(self, value: Any) -> str:
        """The value as plain text."""
        return "-" if value is None else self.show(value)


Row = dict[str, Any]
"""Values by the names of their columns; a missing value is unknown."""
REFERENCE = "reference"
"""Name of the value in a row that is True where the row is never the best one."""


@dataclass
class Table:
    """One table, for any output format."""

    kind: str
    """Name for ``cuber compare --table``."""
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    context: Mapping[str, str] = field(default_factory=dict)
    """Values that hold for all rows, for CSV and JSON; in text they are in the title or the headings."""
    benchmark: str = ""

    @property
    def caption(self) -> str:
        """The title with the benchmark, if it is about one."""
        return f"{self.title} on {self.benchmark}" if self.benchmark else self.title

    def spans(self) -> list[tuple[str, int]]:
        """The headings over columns, each with the number of its columns; none where no column has any."""
        spans = [(over, len(list(columns))) for over, columns in groupby(self.columns, lambda column: column.over)]
        return spans if any(over for over, _ in spans) else []

    def best(self, column: Column) -> list[bool]:
        """Whether each row has the best estimate of a column, as printed; nothing is the best of one."""
        estimates = [None if row.get(REFERENCE) else row.get(column.name) for row in self.rows]
        means = [one.mean for one in estimates if one is not None] if column.higher_is_better is not None else []
        if len(means) < 2:
            return [False] * len(self.rows)
        best = column.text(Estimate(max(means) if column.higher_is_better else min(means)))
        return [one is not None and column.text(Estimate(one.mean)) == best for one in estimates]

    def texts(self) -> list[list[str]]:
        """The rows as plain text."""
        return [[column.text(row.get(column.name)) for column in self.columns] for row in self.rows]

    def plain(self) -> list[dict[str, Any]]:
        """The rows as values for CSV and JSON."""
        parts = [[(c.name, c.parts(row.get(c.name))) for c in self.columns] for row in self.rows]
        return [{name + end: value for name, cell in row for end, value in cell.items()} for row in parts]


def words(heading: str, name: str) -> Column:
    """A column of text."""
    return Column(heading, name, words=True)


def number(heading: str, name: str, form: str = ".2f") -> Column:
    """A column of numbers in a Python format."""
    return Column(heading, name, lambda value: format_number(value, form))


def estimate(heading: str, name: str, form: str = ".2f") -> Column:
    """A column of means with their deviations."""

    def parts(value: Estimate | None) -> dict[str, Any]:
        return {"": value and value.mean, "_deviation": value and value.deviation}

    return Column(heading, name, lambda value: estimate_text(value, form), parts)


def paired(name: str, form: str = "+.2f") -> list[Column]:
    """Columns of the confidence interval and the p-value of a paired difference."""

    def parts(ends: tuple[float, float] | None) -> dict[str, Any]:
        return dict(zip(("_low", "_high"), ends or (None, None), strict=True))

    def show(ends: tuple[float, float]) -> str:
        return f"[{', '.join(format_number(end, form) for end in ends)}]"

    p_value = Column("p", f"{name}_p", lambda p: "<0.001" if p < 0.001 else f"{p:.3f}")
    return [Column("95 % interval", f"{name}_interval", show, parts), p_value]


VARIANT = words("variant", "variant")
SEEDS = number("n", "seeds", "d")
