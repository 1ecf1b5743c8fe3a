"""Tables of time and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cuber.report.comparison import paper
from cuber.report.model import Estimate, Group, Variant
from cuber.report.table import SEEDS, Column, Table, VariantColumns, estimate, number, variant_table

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

    def relative(variant: Variant) -> Estimate | None:
        seconds = [(seconds_per_task(ours), seconds_per_task(theirs)) for ours, theirs in variant.pairs(baseline)]
        return Estimate.of(ours / theirs for ours, theirs in seconds if theirs > 0)

    columns: VariantColumns = [
        (SEEDS, lambda v: len(v.results)),
        (estimate("seconds per task", "seconds"), lambda v: Estimate.of(map(seconds_per_task, v.results))),
    ]
    notes = _machines(group)
    if baseline is not None:
        columns.append((estimate(f"/ {baseline.label}", "relative"), relative))
        if any(paper.figure(paper.TIME, group.benchmark, variant) is not None for variant in group.variants):
            columns.append((number("paper", "paper_relative"), lambda v: paper.figure(paper.TIME, group.benchmark, v)))
            notes += paper.incomplete(group)
    table = variant_table("time", "Training time", group.variants, columns)
    return [replace(table, notes=notes, context=_context(baseline))]


def _machines(group: Group) -> list[str]:
    machines = {", ".join(f"{name} {result.machine.get(name)}" for name in MACHINE) for result in group.results}
    return [f"not all on one machine: {'; '.join(sorted(machines))}"] if len(machines) > 1 else []


def memory(group: Group, baseline: Variant | None) -> list[Table]:
    """Megabytes kept after the last task, by kind, and relative to the baseline."""
    columns: VariantColumns = [
        (SEEDS, lambda v: len(v.results)),
        (number("MB", "megabytes", ".3f"), lambda v: v.memory / MEGABYTE),
    ]
    if baseline is not None:
        unit = baseline.memory
        columns.append((number(f"/ {baseline.label}", "relative"), lambda v: v.memory / unit if unit else None))
    columns.append((_kinds(group), lambda v: {kind: size / MEGABYTE for kind, size in v.bytes.items()}))
    table = variant_table("memory", "Memory after the last task", group.variants, columns)
    return [replace(table, context=_context(baseline))]


def _context(baseline: Variant | None) -> dict[str, str]:
    return {} if baseline is None else {"baseline": baseline.label}


def _kinds(group: Group) -> Column:
    """Sizes by kind: one cell in text, one value per kind in CSV and JSON."""
    kinds = dict.fromkeys(kind for variant in group.variants for kind in variant.bytes)

    def show(by_kind: dict[str, float]) -> str:
        return ", ".join(f"{kind} {size:.3f}" for kind, size in by_kind.items()) or "nothing"

    def parts(by_kind: dict[str, float]) -> dict[str, float]:
        return {f"_{kind}": by_kind.get(kind, 0.0) for kind in kinds}

    return Column("of which", "megabytes_of", show, parts, words=True, long=True)
