"""Tables of ACC and BWT, of transfer (BWT-S and FWT), and of time and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cuber import metrics
from cuber.report import statistics
from cuber.report.comparison import paper
from cuber.report.model import Estimate, Group, Variant
from cuber.report.table import (
    SEEDS,
    VARIANT,
    Column,
    Row,
    Table,
    VariantColumns,
    estimate,
    interval,
    number,
    probability,
    setting,
    variant_table,
    words,
)

if TYPE_CHECKING:
    from cuber.training import Result

MEASURED = [estimate("ACC %", "acc"), estimate("BWT %", "bwt", "+.2f")]
WITH_PAPER = [
    estimate("ACC %", "acc"),
    estimate("paper", "paper_acc"),
    number("diff.", "acc_difference", "+.2f"),
    estimate("BWT %", "bwt", "+.2f"),
    estimate("paper", "paper_bwt"),
    number("diff.", "bwt_difference", "+.2f"),
]
ORDER = number("order", "acc_deviation_of_order")
DIFFERENCES = [
    VARIANT,
    SEEDS,
    number("ACC", "acc_difference", "+.2f"),
    interval("95 % interval", "acc_interval"),
    probability("p", "acc_p"),
    number("BWT", "bwt_difference", "+.2f"),
    interval("95 % interval", "bwt_interval"),
    probability("p", "bwt_p"),
]


def accuracy(group: Group) -> list[Table]:
    """ACC and BWT, mean and deviation over seeds, beside the paper's where it has any."""
    rows = [row for variant in group.variants for row in _rows(group.benchmark, variant)]
    known = any(row.get("paper_acc") is not None for row in rows)
    shuffled = any(row.get(ORDER.name) is not None for row in rows)
    columns = [VARIANT, SEEDS, *(WITH_PAPER if known else MEASURED), *([ORDER] if shuffled else [])]
    notes = paper.incomplete(group) + _reproduced(group) if known else []
    if shuffled:
        notes.append(
            "order: standard deviation of ACC over orders of the test samples, which matters where batch "
            "normalization uses the statistics of each batch"
        )
    return [Table("acc", "ACC and BWT, mean ± standard deviation over n seeds,", columns, rows, notes)]


def _rows(benchmark: str, variant: Variant) -> list[Row]:
    figures = paper.figures(benchmark, variant)
    told = _row(variant, figures)
    deviations = [
        statistics.deviation([metrics.average_accuracy([row]) for row in result.reshuffled])
        for result in variant.results
    ]
    known = [deviation for deviation in deviations if deviation is not None]
    told[ORDER.name] = statistics.mean(known) if known else None
    same = all(result.accuracy_bare in (None, result.accuracy) for result in variant.results)
    if same or variant.figure("acc", bare=True) is None:
        return [told]
    return [told, _row(variant, figures, bare=True)]


def _row(variant: Variant, figures: paper.Figures | None, *, bare: bool = False) -> Row:
    row: Row = {"variant": variant.label + ", task not told" * bare, "seeds": len(variant.results)}
    for name, printed in zip(("acc", "bwt"), figures or (None, None), strict=True):
        ours = variant.figure(name, bare=bare)
        difference = ours.mean - printed.mean if ours and printed and not variant.shrunk else None
        row |= {name: ours, f"paper_{name}": printed, f"{name}_difference": difference}
    return row


def _reproduced(group: Group) -> list[str]:
    methods = [method for method in paper.REPRODUCED.get(group.benchmark, {}) if group.of(method)]
    figures = [(method, *paper.REPRODUCED[group.benchmark][method]) for method in methods]
    own = [f"{method} {acc.printed}" + (f" and {bwt.printed}" if bwt else "") for method, acc, bwt in figures]
    return [f"the paper quotes reported figures here; its authors' own runs gave: {'; '.join(own)}"] if own else []


def differences(group: Group, against: Variant | None) -> list[Table]:
    """Paired differences to one variant, for the variants that share at least two seeds with it."""
    rows = []
    for variant in group.variants:
        pairs = variant.pairs(against) if variant is not against else []
        if len(pairs) > 1:
            row: Row = {"variant": variant.label, "seeds": len(pairs)}
            rows.append(row | _paired("acc", [(o.acc, t.acc) for o, t in pairs]))
            rows[-1] |= _paired("bwt", [(o.bwt, t.bwt) for o, t in pairs])
    if not rows or against is None:
        return []
    title = f"Differences to {against.label} with the same seeds"
    note = "p: two-sided paired t-test, not corrected for the number of rows; none where all seeds differ equally"
    return [Table("differences", title, DIFFERENCES, rows, [note], context={"against": against.label})]


def _paired(name: str, pairs: Sequence[tuple[float | None, float | None]]) -> Row:
    known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    if len(known) < len(pairs):
        return {}
    gain = statistics.paired([ours for ours, _ in known], [theirs for _, theirs in known])
    return {f"{name}_difference": gain.mean, f"{name}_interval": gain.interval, f"{name}_p": gain.p}


def sweep(group: Group) -> list[Table]:
    """For each method with several variants: one row per variant, with the values in which they differ."""
    tables = []
    for method in dict.fromkeys(variant.method for variant in group.variants):
        variants = group.of(method)
        swept = list(variants[0].changes)
        if not swept:
            continue
        known = swept == ["eps2"] and (group.benchmark, method) == ("split-cifar100", "cuber")
        columns = [*map(setting, swept), SEEDS, *(WITH_PAPER if known else MEASURED)]
        rows = [_row(v, paper.EPS2.get(v.changes["eps2"]) if known else None) | dict(v.changes) for v in variants]
        title, notes = f"{method} with different values of {' and '.join(swept)}", paper.incomplete(group)
        tables.append(Table("sweep", title, columns, rows, notes if known else [], context={"method": method}))
    return tables


# Transfer

Selections = dict[int, int]
"""New task -> the old task that was in regime 3 in the most layers."""


def selected(group: Group, against: Variant | None) -> list[Table]:
    """BWT-S: the change of the old task selected for each new task; in ``against`` too, for the same selections."""
    return [table for variant in group.variants for table in _selected(group, variant, against)]


def _selected(group: Group, variant: Variant, against: Variant | None) -> list[Table]:
    selections = {result.seed: _selections(result) for result in variant.results}
    tasks = sorted({task for chosen in selections.values() for task in chosen})
    if not tasks:
        return []
    pairs = variant.pairs(against) if against is not variant else []
    theirs = [result for _, result in pairs if _one_by_one(result)]
    same = variant.method == "cuber" and paper.has(variant) and not variant.shrunk
    printed = paper.SELECTED.get(group.benchmark, {}) if same else {}

    def row(tasks: Sequence[int]) -> Row:
        ours = {"bwt_s": _changes(variant.results, selections, tasks)}
        return {**ours, "bwt_s_other": _changes(theirs, selections, tasks), **_of_paper(printed, tasks)}

    rows = [{"task": str(task), "selected": _votes(selections, task), **row([task])} for task in tasks]
    rows.append({"task": "average", **row(tasks)})
    columns = [words("task", "task"), words("selected (seeds)", "selected"), estimate(variant.label, "bwt_s", "+.2f")]
    context = {"variant": variant.label}
    if theirs and against is not None:
        columns.append(estimate(against.label, "bwt_s_other", "+.2f"))
        context["other"] = against.label
    if printed:
        columns.append(words("paper: selected", "paper_selected"))
        columns.append(number("its cuber", "paper_bwt_s", "+.2f"))
        columns.append(number("its trgp", "paper_bwt_s_trgp", "+.2f"))
    title = f"BWT-S in % of the old tasks that {variant.label} selected"
    return [Table("selected", title, columns, rows, context=context)]


def _selections(result: Result) -> Selections:
    chosen = {task: metrics.most_selected(regimes) for task, regimes in enumerate(result.regimes)}
    return {task: old for task, old in chosen.items() if old is not None}


def _votes(selections: dict[int, Selections], task: int) -> str:
    """The old tasks selected for a new one, with the number of seeds: "0 (2), 1 (1)"."""
    votes = Counter(chosen[task] for chosen in selections.values() if task in chosen)
    return ", ".join(f"{old} ({count})" for old, count in sorted(votes.items()))


def _changes(results: Sequence[Result], selections: dict[int, Selections], tasks: Sequence[int]) -> Estimate | None:
    """Mean BWT-S over the tasks of each result, over the results that selected any."""
    means = []
    for result in results:
        chosen = [(task, old) for task, old in selections[result.seed].items() if task in tasks]
        changes = [metrics.backward_transfer_of_selected(result.accuracy, task, old) for task, old in chosen]
        means += [statistics.mean(changes)] if changes else []
    return Estimate.of(means)


def _of_paper(printed: Mapping[int, tuple[int, float, float]], tasks: Sequence[int]) -> Row:
    known = [printed[task] for task in tasks if task in printed]
    if not known:
        return {}
    old, *means = zip(*known, strict=True)
    row = dict(zip(("paper_bwt_s", "paper_bwt_s_trgp"), map(statistics.mean, means), strict=True))
    return {**row, "paper_selected": str(old[0]) if len(tasks) == 1 else None}


def forward(group: Group, baseline: Variant | None) -> list[Table]:
    """FWT: the accuracy of each task right after learning it, minus that of the baseline with the same seeds."""
    rows: list[Row] = []
    for variant in group.variants:
        pairs = variant.pairs(baseline) if variant is not baseline else []
        own = [
            [statistics.mean(metrics.diagonal(result.accuracy)) for result in pair]
            for pair in pairs
            if all(map(_one_by_one, pair))
        ]
        if own:
            gain = statistics.paired([ours for ours, _ in own], [theirs for _, theirs in own])
            printed = paper.figure(paper.FORWARD, group.benchmark, variant)
            row: Row = {"variant": variant.label, "seeds": gain.count, "fwt": Estimate(gain.mean, gain.deviation)}
            row |= {"fwt_interval": gain.interval, "fwt_p": gain.p, "paper_fwt": printed}
            row["fwt_difference"] = None if printed is None or variant.shrunk else gain.mean - printed
            rows.append(row)
    if not rows or baseline is None:
        return []
    columns = [VARIANT, SEEDS, estimate("FWT %", "fwt", "+.2f")]
    columns += [interval("95 % interval", "fwt_interval"), probability("p", "fwt_p")]
    known = any(row["paper_fwt"] is not None for row in rows)
    if known:
        columns += [number("paper", "paper_fwt", "+.2f"), number("diff.", "fwt_difference", "+.2f")]
    notes = paper.incomplete(group) if known else []
    return [Table("forward", f"FWT over {baseline.label}", columns, rows, notes, context={"baseline": baseline.label})]


def _one_by_one(result: Result) -> bool:
    return len(result.accuracy) == len(result.tasks)


# Time and memory


def time(group: Group, baseline: Variant | None) -> list[Table]:
    """Seconds per task without the tests, and relative to the baseline with the same seeds."""

    def seconds(result: Result) -> float:
        return sum(result.seconds) / len(result.tasks)

    def relative(variant: Variant) -> Estimate | None:
        both = [(seconds(ours), seconds(theirs)) for ours, theirs in variant.pairs(baseline)]
        return Estimate.of(ours / theirs for ours, theirs in both if theirs > 0)

    columns: VariantColumns = [
        (SEEDS, lambda v: len(v.results)),
        (estimate("seconds per task", "seconds"), lambda v: Estimate.of(map(seconds, v.results))),
    ]
    notes = [f"not all on one machine and version: {'; '.join(group.machines)}"] if len(group.machines) > 1 else []
    if baseline is not None:
        columns.append((estimate(f"/ {baseline.label}", "relative"), relative))
        if any(paper.figure(paper.TIME, group.benchmark, variant) is not None for variant in group.variants):
            columns.append((number("paper", "paper_relative"), lambda v: paper.figure(paper.TIME, group.benchmark, v)))
            notes += paper.incomplete(group)
    table = variant_table("time", "Training time", group.variants, columns)
    return [replace(table, notes=notes, context={"baseline": baseline.label} if baseline else {})]


def memory(group: Group, baseline: Variant | None) -> list[Table]:
    """Megabytes kept after the last task, by kind, and relative to the baseline."""
    columns: VariantColumns = [
        (SEEDS, lambda v: len(v.results)),
        (number("MB", "megabytes", ".3f"), lambda v: v.memory / 1e6),
    ]
    if baseline is not None:
        unit = baseline.memory
        columns.append((number(f"/ {baseline.label}", "relative"), lambda v: v.memory / unit if unit else None))
    kinds = dict.fromkeys(kind for variant in group.variants for kind in variant.bytes)

    def show(by_kind: dict[str, float]) -> str:
        return ", ".join(f"{kind} {size:.3f}" for kind, size in by_kind.items()) or "nothing"

    def parts(by_kind: dict[str, float]) -> dict[str, float]:
        return {f"_{kind}": by_kind.get(kind, 0.0) for kind in kinds}

    by_kind = Column("of which", "megabytes_of", show, parts, words=True, long=True)
    columns.append((by_kind, lambda v: {kind: size / 1e6 for kind, size in v.bytes.items()}))
    table = variant_table("memory", "Memory after the last task", group.variants, columns)
    return [replace(table, context={"baseline": baseline.label} if baseline else {})]
