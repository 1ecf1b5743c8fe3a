"""Tables of time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuber.report.comparison import paper
from cuber.report.model import Estimate, Group, Variant
from cuber.report.table import SEEDS, VARIANT, Column, Row, Table, estimate, number

if TYPE_CHECKING:
    from cuber.training import Result

MEGABYTE = 1e6
MACHINE = ("system", "processor", "device", "threads")
"""What training times depend on, as far as results record it."""


def seconds_per_task(result: Result) -> float:
    """Training time per task, without the tests."""
    return sum(result.seconds) / len(result.tasks)


def time(group: Group, baseline: Variant | None) -> list[Table]:
    """Seconds per task, and relative to the baseline with the same seeds."""
    rows: list[Row] = []
    for variant in group.variants:
        seconds = [(seconds_per_task(ours), seconds_per_task(theirs)) for ours, theirs in variant.pairs(baseline)]
        rows.append(
            {
                "variant": variant.label,
                "seeds": len(variant.results),
                "seconds": Estimate.of(map(seconds_per_task, variant.results)),
                "relative": Estimate.of(ours / theirs for ours, theirs in seconds if theirs > 0),
                "paper_relative": paper.figure(paper.TIME, group.benchmark, variant),
            }
        )
    columns, notes = [VARIANT, SEEDS, estimate("seconds per task", "seconds")], _machines(group)
    if baseline is not None:
        columns.append(estimate(f"/ {baseline.label}", "relative"))
        if any(row["paper_relative"] is not None for row in rows):
            columns.append(number("paper", "paper_relative"))
            notes += paper.incomplete(group)
    return [Table("time", "Training time", columns, rows, notes, context=_context(baseline))]


def _machines(group: Group) -> list[str]:
    machines = {", ".join(f"{name} {result.machine.get(name)}" for name in MACHINE) for result in group.results}
    return [f"not all on one machine: {'; '.join(sorted(machines))}"] if len(machines) > 1 else []


def memory(group: Group, baseline: Variant | None) -> list[Table]:
    """Megabytes kept after the last task, by kind, and relative to the baseline."""
    sizes = [{kind: size / MEGABYTE for kind, size in variant.bytes.items()} for variant in group.variants]
    kinds = list(dict.fromkeys(kind for by_kind in sizes for kind in by_kind))
    unit = baseline.memory / MEGABYTE if baseline is not None else 0.0
    rows: list[Row] = [
        {
            "variant": variant.label,
            "seeds": len(variant.results),
            "megabytes": sum(by_kind.values()),
            "relative": sum(by_kind.values()) / unit if unit else None,
            "megabytes_of": by_kind,
        }
        for variant, by_kind in zip(group.variants, sizes, strict=True)
    ]
    columns = [VARIANT, SEEDS, number("MB", "megabytes", ".3f")]
    if baseline is not None:
        columns.append(number(f"/ {baseline.label}", "relative"))
    return [Table("memory", "Memory after the last task", [*columns, _kinds(kinds)], rows, context=_context(baseline))]


def _context(baseline: Variant | None) -> dict[str, str]:
    return {} if baseline is None else {"baseline": baseline.label}


def _kinds(kinds: list[str]) -> Column:
    """Sizes by kind: one cell in text, one value per kind in CSV and JSON."""

    def show(by_kind: dict[str, float]) -> str:
        return ", ".join(f"{kind} {size:.3f}" for kind, size in by_kind.items()) or "nothing"

    def parts(by_kind: dict[str, float]) -> dict[str, float]:
        return {f"_{kind}": by_kind.get(kind, 0.0) for kind in kinds}

    return Column("of which", "megabytes_of", show, parts, words=True, long=True)
