"""Tables of what it costs: time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuber.report import statistics
from cuber.report.comparison import paper
from cuber.report.comparison.table import SEEDS, VARIANT, Column, Estimate, Row, Sheet, estimate, number

if TYPE_CHECKING:
    from cuber.experiments.variants import Group, Variant
    from cuber.training import Result

MEGABYTE = 1e6
MACHINE = ("system", "processor", "device", "threads")
"""What running times depend on, as far as results tell."""


def seconds_per_task(result: Result) -> float:
    """Time for learning, the tests not included."""
    return sum(result.seconds) / len(result.tasks)


def time(group: Group, baseline: Variant | None) -> list[Sheet]:
    """Seconds per task, and relative to the baseline on the same seeds."""
    rows: list[Row] = []
    for variant in group.variants:
        pairs = variant.pairs(baseline) if baseline is not None else []
        rows.append(
            {
                "variant": variant.label,
                "seeds": len(variant.results),
                "seconds": Estimate.of(variant.values(seconds_per_task)),
                "relative": Estimate.of(_ratios(pairs)),
                "paper_relative": paper.figure(paper.TIME, group.benchmark, variant),
            }
        )
    columns, notes = [VARIANT, SEEDS, estimate("seconds per task", "seconds")], _machines(group)
    if baseline is not None:
        columns.append(estimate(f"/ {baseline.label}", "relative"))
        if any(row["paper_relative"] is not None for row in rows):
            columns.append(number("paper", "paper_relative"))
            notes += paper.cut(group)
    return [Sheet("time", group.title, "Time for learning", columns, rows, notes, _about(baseline))]


def _ratios(pairs: Sequence[tuple[Result, Result]]) -> list[float]:
    seconds = [(seconds_per_task(ours), seconds_per_task(theirs)) for ours, theirs in pairs]
    return [ours / theirs for ours, theirs in seconds if theirs > 0]


def _machines(group: Group) -> list[str]:
    results = [result for variant in group.variants for result in variant.results]
    machines = {", ".join(f"{name} {result.machine.get(name)}" for name in MACHINE) for result in results}
    return [f"not all on one machine: {'; '.join(sorted(machines))}"] if len(machines) > 1 else []


def memory(group: Group, baseline: Variant | None) -> list[Sheet]:
    """What is kept after the last task, in megabytes and by kind, and relative to the baseline's."""
    sizes = [_megabytes(variant) for variant in group.variants]
    kinds = list(dict.fromkeys(kind for by_kind in sizes for kind, size in by_kind.items() if size))
    unit = sum(_megabytes(baseline).values()) if baseline is not None else 0.0
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
    columns.append(_kinds(kinds))
    return [Sheet("memory", group.title, "Memory in the end", columns, rows, context=_about(baseline))]


def _about(baseline: Variant | None) -> dict[str, str]:
    return {} if baseline is None else {"baseline": baseline.label}


def _megabytes(variant: Variant) -> dict[str, float]:
    """The mean over the seeds for each kind that there is."""
    last = [result.bytes[-1] for result in variant.results]
    kinds = dict.fromkeys(kind for by_kind in last for kind in by_kind)
    return {kind: statistics.mean([by_kind.get(kind, 0) / MEGABYTE for by_kind in last]) for kind in kinds}


def _kinds(kinds: list[str]) -> Column:
    """Sizes by kind: listed for people, a value for each kind for programs."""

    def show(by_kind: dict[str, float]) -> str:
        return ", ".join(f"{kind} {size:.3f}" for kind, size in by_kind.items() if size) or "nothing"

    def parts(by_kind: dict[str, float]) -> dict[str, float]:
        return {f"_{kind}": by_kind.get(kind, 0.0) for kind in kinds}

    return Column("of which", "megabytes_of", show, parts, words=True, long=True)
