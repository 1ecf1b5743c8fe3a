"""Tables of ACC and BWT: beside the paper's, against another variant on the same seeds, and over a swept setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuber import metrics
from cuber.report import statistics
from cuber.report.comparison import paper
from cuber.report.comparison.table import (
    SEEDS,
    VARIANT,
    Estimate,
    Row,
    Sheet,
    between,
    estimate,
    number,
    probability,
    setting,
)

if TYPE_CHECKING:
    from cuber.experiments.variants import Group, Variant
    from cuber.training import Result

MEASURED = [estimate("ACC %", "acc"), estimate("BWT %", "bwt", "+.2f")]
BESIDE_THE_PAPER = [
    estimate("ACC %", "acc"),
    estimate("paper", "paper_acc"),
    number("diff.", "acc_difference", "+.2f"),
    estimate("BWT %", "bwt", "+.2f"),
    estimate("paper", "paper_bwt"),
    number("diff.", "bwt_difference", "+.2f"),
]
ORDER = number("order", "acc_deviation_of_order")


# ACC and BWT


def accuracy(group: Group) -> list[Sheet]:
    """ACC and BWT, mean and deviation over seeds, beside the paper's where it has any."""
    rows = [row for variant in group.variants for row in _rows(group.benchmark, variant)]
    known = any(row.get("paper_acc") is not None for row in rows)
    spread = any(row.get(ORDER.name) is not None for row in rows)
    columns = [VARIANT, SEEDS, *(BESIDE_THE_PAPER if known else MEASURED), *([ORDER] if spread else [])]
    notes = paper.cut(group) + _reproduced(group) if known else []
    if spread:
        notes.append(
            "order: standard deviation of ACC when the test samples come in other orders, which matters "
            "where batches are normalized by their own statistics"
        )
    return [Sheet("acc", group.title, "ACC and BWT, mean ± standard deviation over n seeds,", columns, rows, notes)]


def _rows(benchmark: str, variant: Variant) -> list[Row]:
    figures = paper.figures(benchmark, variant)
    told = _row(variant.label, [result.accuracy for result in variant.results], figures, bool(variant.shrunk))
    told[ORDER.name] = _spread_of_order(variant)
    bare = [result.accuracy_bare for result in variant.results if result.accuracy_bare is not None]
    if bare == [result.accuracy for result in variant.results] or len(bare) < len(variant.results):
        return [told]
    return [told, _row(f"{variant.label}, task not told", bare, figures, bool(variant.shrunk))]


def _row(label: str, matrices: Sequence[metrics.Matrix], figures: paper.Figures | None, shrunk: bool) -> Row:
    acc = Estimate.of([metrics.average_accuracy(matrix) for matrix in matrices])
    changes = [metrics.backward_transfer(matrix) for matrix in matrices]
    bwt = Estimate.of([change for change in changes if change is not None])
    paper_acc, paper_bwt = figures or (None, None)
    return {
        "variant": label,
        "seeds": len(matrices),
        "acc": acc,
        "bwt": bwt,
        "paper_acc": paper_acc,
        "paper_bwt": paper_bwt,
        # A part of a benchmark is no easier or harder by so and so much: it is something else.
        "acc_difference": None if shrunk else _difference(acc, paper_acc),
        "bwt_difference": None if shrunk else _difference(bwt, paper_bwt),
    }


def _difference(ours: Estimate | None, theirs: Estimate | None) -> float | None:
    return None if ours is None or theirs is None else ours.mean - theirs.mean


def _spread_of_order(variant: Variant) -> float | None:
    """How much ACC depends on the order of the test samples alone: its deviation, the mean over the seeds."""

    def spread(result: Result) -> float | None:
        return statistics.deviation([metrics.average_accuracy([row]) for row in result.reshuffled])

    spreads = variant.values(spread)
    return statistics.mean(spreads) if spreads else None


def _reproduced(group: Group) -> list[str]:
    methods = [method for method in paper.REPRODUCED.get(group.benchmark, {}) if group.of(method)]
    figures = [(method, *paper.REPRODUCED[group.benchmark][method]) for method in methods]
    own = [f"{method} {acc.printed}" + (f" and {bwt.printed}" if bwt else "") for method, acc, bwt in figures]
    return [f"others had reported the paper's figures; its authors' own were: {'; '.join(own)}"] if own else []


# Differences on the same seeds


DIFFERENCES = [
    VARIANT,
    SEEDS,
    number("ACC", "acc_difference", "+.2f"),
    between("95 % interval", "acc_interval"),
    probability("p", "acc_p"),
    number("BWT", "bwt_difference", "+.2f"),
    between("95 % interval", "bwt_interval"),
    probability("p", "bwt_p"),
]


def differences(group: Group, against: Variant | None) -> list[Sheet]:
    """How far each variant is from another one, seed by seed: nothing where fewer than two seeds match."""
    rows = []
    for variant in group.variants:
        pairs = variant.pairs(against) if against is not None and variant is not against else []
        if len(pairs) > 1:
            acc = statistics.paired([ours.acc for ours, _ in pairs], [theirs.acc for _, theirs in pairs])
            rows.append({"variant": variant.label, "seeds": len(pairs), **_paired("acc", acc), **_changes(pairs)})
    if not rows or against is None:
        return []
    title = f"Differences to {against.label} with the same seeds"
    note = "p: two-sided paired t-test, not corrected for the number of rows; none where all seeds differ alike"
    return [Sheet("differences", group.title, title, DIFFERENCES, rows, [note], {"against": against.label})]


def _changes(pairs: Sequence[tuple[Result, Result]]) -> Row:
    both = [(ours.bwt, theirs.bwt) for ours, theirs in pairs if ours.bwt is not None and theirs.bwt is not None]
    if len(both) < len(pairs):
        return {}
    return _paired("bwt", statistics.paired([ours for ours, _ in both], [theirs for _, theirs in both]))


def _paired(name: str, difference: statistics.Paired) -> Row:
    return {f"{name}_difference": difference.mean, f"{name}_interval": difference.interval, f"{name}_p": difference.p}


# A swept setting


def sweep(group: Group) -> list[Sheet]:
    """For each method with several variants: a row for each, with the values in which they differ."""
    sheets = []
    for method in dict.fromkeys(variant.method for variant in group.variants):
        variants = group.of(method)
        swept = list(variants[0].changes)
        if not swept:
            continue
        known = swept == ["eps2"] and (group.benchmark, method) == ("split-cifar100", "cuber")
        columns = [setting(name) for name in swept] + [SEEDS, *(BESIDE_THE_PAPER if known else MEASURED)]
        rows = [_swept_row(variant, known) for variant in variants]
        title, notes = f"{method} with different values of {' and '.join(swept)}", paper.cut(group) if known else []
        sheets.append(Sheet("sweep", group.title, title, columns, rows, notes, {"method": method}))
    return sheets


def _swept_row(variant: Variant, known: bool) -> Row:
    figures = paper.EPS2.get(variant.changes["eps2"]) if known else None
    row = _row(variant.label, [result.accuracy for result in variant.results], figures, bool(variant.shrunk))
    return {**row, **variant.changes}
