"""Tables of `cuber compare`, made of the model in `cuber.report.model`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuber.errors import CuberError, unknown
from cuber.report.comparison.tables import accuracy, differences, forward, memory, selected, sweep, time
from cuber.report.model import Group, Report, Variant
from cuber.report.table import Table

if TYPE_CHECKING:
    from cuber.experiments.results import RunRecord

BASELINE = "gpm"
"""The method to which the paper relates FWT, time and memory."""
BEST_BEFORE = "trgp"
"""The method with which the paper compares CUBER."""

TABLES = {
    "acc": "a finished run",
    "differences": f"two seeds of the variant that --against names (default: {BEST_BEFORE}) and of another",
    "selected": "old tasks in regime 3",
    "forward": f"runs of {BASELINE} and of another method with the same seed",
    "sweep": "runs of one method that differ in a setting",
    "time": "a finished run",
    "memory": "a finished run",
}
"""Names of the tables in the order of the output, and the runs that each needs."""


@dataclass(frozen=True)
class Comparison:
    """The tables, and the runs without a result."""

    tables: list[Table]
    unfinished: Sequence[RunRecord]


def compare(report: Report, against: str | None = None, tables: Collection[str] = ()) -> Comparison:
    """Make all tables for which there are runs, or only those named in ``tables``.

    ``against`` is the label or method of the variant that the others are tested against; default: TRGP.
    """
    groups = report.groups
    for name in tables:
        if name not in TABLES:
            raise unknown("table", name, TABLES)
    if groups and against is not None and not any(_named(group, against) for group in groups):
        raise unknown("variant", against, dict.fromkeys(each.label for group in groups for each in group.variants))
    made = [table for group in groups for table in _tables(group, against, tables or TABLES)]
    for name in tables:
        if groups and not any(table.kind == name for table in made):
            raise CuberError(f"table '{name}' cannot be made of these runs: {_lack(name, groups, against)}")
    return Comparison(made, report.unfinished)


def _tables(group: Group, against: str | None, wanted: Collection[str]) -> list[Table]:
    other = _named(group, against) if against is not None else _only(group.of(BEST_BEFORE))
    baseline = next(iter(group.of(BASELINE)), None)
    made = [*accuracy(group), *differences(group, other), *selected(group, other), *forward(group, baseline)]
    made += [*sweep(group), *time(group, baseline), *memory(group, baseline)]
    made = [table for table in made if table.kind in wanted]
    for table in made:
        table.benchmark = group.title
    for table in made[:1]:
        table.notes = [*group.notes, *table.notes]
    return made


def _lack(table: str, groups: Sequence[Group], against: str | None) -> str:
    """Why a table cannot be made."""
    usual = [group.of(BEST_BEFORE) for group in groups]
    if table != "differences" or against is not None or any(map(_only, usual)):
        return f"it needs {TABLES[table]}"
    count = "more than one" if any(usual) else "no"
    return f"there is {count} {BEST_BEFORE} to compare with; name a variant with --against"


def _named(group: Group, name: str) -> Variant | None:
    """The variant with that label, or the only one of the method with that name."""
    labeled = [variant for variant in group.variants if variant.label == name]
    of_method = group.of(name)
    if not labeled and len(of_method) > 1:
        labels = ", ".join(f"'{variant.label}'" for variant in of_method)
        raise CuberError(f"'{name}' may be any of {labels} on {group.title}: name one of them")
    return next(iter(labeled or of_method), None)


def _only(variants: list[Variant]) -> Variant | None:
    return variants[0] if len(variants) == 1 else None
