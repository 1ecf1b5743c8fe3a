"""Tables of `cuber compare` from made-up results."""

from __future__ import annotations

from pathlib import Path

from cuber.experiments.results import FINISHED, RunRecord
from cuber.report.comparison import Comparison, compare
from cuber.report.grouping import make_report
from cuber.report.table import Table
from tests.made_up import result, shifted

CIFAR = "split-cifar100"


def made(*results, against=None, tables=()) -> Comparison:
    runs = [RunRecord(Path(f"run{n}"), FINISHED, {}, one) for n, one in enumerate(results)]
    return compare(make_report(runs), against, tables)


def table(kind: str, *results, **options) -> Table:
    (found,) = [one for one in made(*results, **options).tables if one.kind == kind]
    return found


def texts(one: Table) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in one.texts()}


def seeds(method: str, *moves: tuple[float, float], **changes) -> list:
    """A result for each seed, its ACC and BWT moved from 80 and 0 by so much."""
    return [result(method, n, accuracy=shifted(*move), **changes) for n, move in enumerate(moves)]
