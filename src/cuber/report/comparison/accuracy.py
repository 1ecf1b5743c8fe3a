"""Tables of ACC and BWT: beside the paper's, against another variant with the same seeds, and over a swept setting."""

from __future__ import annotations

from collections.abc import Sequence

from cuber import metrics
from cuber.report import statistics
from cuber.report.comparison import paper
from cuber.report.model import Group, Variant
from cuber.report.table import SEEDS, VARIANT, Row, Table, estimate, interval, number, probability, setting

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
    difference = statistics.paired([ours for ours, _ in known], [theirs for _, theirs in known])
    return {f"{name}_difference": difference.mean, f"{name}_interval": difference.interval, f"{name}_p": difference.p}


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
