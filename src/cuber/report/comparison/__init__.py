"""The paper's tables, made of runs: what to show, whatever the format."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuber.errors import CuberError, unknown
from cuber.report.comparison import accuracy, cost, transfer
from cuber.report.comparison.table import Sheet

if TYPE_CHECKING:
    from cuber.experiments.results import Run
    from cuber.experiments.variants import Group, Variant

BASELINE = "gpm"
"""What the paper measures FWT, time and memory by."""
BEST_BEFORE = "trgp"
"""What the paper compares CUBER with."""

TABLES = {
    "acc": "a finished run",
    "differences": f"two seeds of the variant that --against names, else of {BEST_BEFORE}, and of another",
    "selected": "old tasks that were in regime 3",
    "forward": f"runs of {BASELINE} and of another method with the same seed",
    "sweep": "runs of one method that differ in a setting",
    "time": "a finished run",
    "memory": "a finished run",
}
"""The tables that there are, in the order in which they are shown, and what each is made of."""


@dataclass(frozen=True)
class Comparison:
    """All that there is to show."""

    sheets: list[Sheet]
    unfinished: list[Run]


def compare(
    runs: Sequence[Run], groups: Sequence[Group], against: str | None = None, tables: Collection[str] = ()
) -> Comparison:
    """The tables that the groups of runs allow, or those of them that are wanted."""
    for name in tables:
        if name not in TABLES:
            raise unknown("table", name, TABLES)
    if groups and against is not None and not any(_named(group, against) for group in groups):
        raise unknown("variant", against, dict.fromkeys(each.label for group in groups for each in group.variants))
    sheets = [sheet for group in groups for sheet in _sheets(group, against, tables or TABLES)]
    for name in tables:
        if groups and not any(sheet.kind == name for sheet in sheets):
            raise CuberError(f"there is no table '{name}' to be made of these runs: {_lack(name, groups, against)}")
    return Comparison(sheets, [run for run in runs if run.result is None])


def _sheets(group: Group, against: str | None, tables: Collection[str]) -> list[Sheet]:
    other = _named(group, against) if against is not None else _only(group.of(BEST_BEFORE))
    baseline = _first(group.of(BASELINE))
    made = [
        *accuracy.accuracy(group),
        *accuracy.differences(group, other),
        *transfer.selected(group, other),
        *transfer.forward(group, baseline),
        *accuracy.sweep(group),
        *cost.time(group, baseline),
        *cost.memory(group, baseline),
    ]
    wanted = [sheet for sheet in made if sheet.kind in tables]
    for sheet in wanted[:1]:
        sheet.notes = group.notes + sheet.notes
    return wanted


def _lack(table: str, groups: Sequence[Group], against: str | None) -> str:
    """Why there is no such table."""
    usual = [group.of(BEST_BEFORE) for group in groups]
    if table != "differences" or against is not None or any(map(_only, usual)):
        return f"it needs {TABLES[table]}"
    if any(usual):
        return f"there is more than one {BEST_BEFORE} to compare with, so name a variant with --against"
    return f"there is no {BEST_BEFORE} to compare with, so name another variant with --against"


def _named(group: Group, name: str) -> Variant | None:
    """The variant with that label, or the only one of the method with that name."""
    labelled = [variant for variant in group.variants if variant.label == name]
    of_method = group.of(name)
    if not labelled and len(of_method) > 1:
        labels = ", ".join(f"'{variant.label}'" for variant in of_method)
        raise CuberError(f"'{name}' may be any of {labels} on {group.title}: name one of them")
    return _first(labelled or of_method)


def _only(variants: list[Variant]) -> Variant | None:
    return variants[0] if len(variants) == 1 else None


def _first(variants: list[Variant]) -> Variant | None:
    return variants[0] if variants else None
