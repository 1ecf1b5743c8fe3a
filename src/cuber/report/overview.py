"""The paper's table 1: ACC and BWT of all methods on all benchmarks, as one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cuber.report.model import Group
from cuber.report.table import REFERENCE, VARIANT, Column, Row, Table


def overview(accuracies: Sequence[tuple[Group, Table]]) -> Table | None:
    """One row per variant, two columns per benchmark; None without benchmarks.

    Args:
        accuracies: Each benchmark with its table of ACC and BWT, the rows of which are used here.
    """
    columns: list[Column] = [VARIANT]
    rows: dict[str, Row] = {}
    for place, (group, table) in enumerate(accuracies):
        better = {"acc": group.metric.higher_is_better, "bwt": True}
        of_table = [column for column in table.columns if column.name in better]
        columns += [
            replace(column, name=f"{column.name}_{place}", over=group.title, higher_is_better=better[column.name])
            for column in of_table
        ]
        at_once = {variant.label for variant in group.variants if variant.at_once}
        for row in table.rows:
            mine = rows.setdefault(row["variant"], {"variant": row["variant"]})
            mine |= {f"{column.name}_{place}": row.get(column.name) for column in of_table}
            mine[REFERENCE] = row["variant"] in at_once
    if not accuracies:
        return None
    title = (
        "Mean accuracy and backward transfer" if all(group.metric.unit for group, _ in accuracies) else "Means and BWT"
    )
    notes = ["mean ± standard deviation over seeds; best in bold, without methods that learn all tasks at once"]
    return Table("overview", title, columns, list(rows.values()), notes)
