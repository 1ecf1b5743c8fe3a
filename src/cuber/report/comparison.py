"""Tables of `cuber compare`: ACC and BWT, differences, transfer (BWT-S and FWT), sweeps, time and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from cuber import metrics
from cuber.errors import CuberError, unknown
from cuber.report import paper, statistics
from cuber.report.model import OTHER_VIEWS, Estimate, Group, Report, Variant, setting_text
from cuber.report.overview import overview
from cuber.report.table import SEEDS, VARIANT, Column, Row, Table, estimate, number, paired, words

if TYPE_CHECKING:
    from cuber.experiments.results import RunRecord
    from cuber.training import Result

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
    overview: Table | None = None
    """ACC and BWT on all benchmarks in one table."""
    of_groups: Sequence[Sequence[Table]] = ()
    """The tables by group, in the order of the report, without the notes of the groups."""


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
    of_groups = [tables_of(group, against, tables or TABLES) for group in groups]
    made: list[Table] = []
    for group, own in zip(groups, of_groups, strict=True):
        for first in own[:1]:
            shortened = [note for note in group.shortened if not any(note in other for other in first.notes)]
            made.append(replace(first, notes=[*group.notes, *shortened, *first.notes]))
        made += own[1:]
    for name in tables:
        if groups and not any(table.kind == name for table in made):
            raise CuberError(f"table '{name}' cannot be made of these runs: {_lack(name, groups, against)}")
    pairs = zip(groups, of_groups, strict=True)
    accuracies = [(group, table) for group, own in pairs for table in own if table.kind == "acc"]
    return Comparison(made, report.unfinished, overview(accuracies), of_groups)


def tables_of(group: Group, against: str | None = None, wanted: Collection[str] = TABLES) -> list[Table]:
    """The tables of one group, without the notes of the group."""
    other = _named(group, against) if against is not None else _only(group.of(BEST_BEFORE))
    baseline = next(iter(group.of(BASELINE)), None)
    made = [
        accuracy(group),
        differences(group, other),
        *(selected(group, variant, other) for variant in group.variants),
        forward(group, baseline),
        *(sweep(group, method) for method in dict.fromkeys(variant.method for variant in group.variants)),
        time(group, baseline),
        memory(group, baseline),
    ]
    tables = [table for table in made if table is not None and table.kind in wanted]
    for table in tables:
        table.benchmark = group.title
    return tables


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


# ACC and BWT


def measured(metric: metrics.Measure) -> list[Column]:
    """Columns of the mean over tasks, and of its change."""
    unit = f" {metric.unit}" if metric.unit else ""
    return [
        estimate(f"{metric.short}{unit}", "acc", metric.form),
        estimate(f"BWT{unit}", "bwt", f"+{metric.form}"),
    ]


WITH_PAPER = [
    estimate("ACC %", "acc"),
    estimate("paper", "paper_acc"),
    number("diff.", "acc_difference", "+.2f"),
    estimate("BWT %", "bwt", "+.2f"),
    estimate("paper", "paper_bwt"),
    number("diff.", "bwt_difference", "+.2f"),
]
ORDER = number("order", "acc_deviation_of_order")


def accuracy(group: Group) -> Table:
    """ACC and BWT, mean and deviation over seeds, beside the paper's where it has any."""
    rows = [row for variant in group.variants for row in _rows(group.benchmark, variant)]
    known = any(row["paper_acc"] is not None for row in rows)
    shuffled = any(row.get(ORDER.name) is not None for row in rows)
    columns = [VARIANT, SEEDS, *(WITH_PAPER if known else measured(group.metric)), *([ORDER] if shuffled else [])]
    notes = paper.incomplete(group) + _reproduced(group) if known else []
    if shuffled:
        notes.append(
            "order: standard deviation of ACC over orders of the test samples, which matters where batch "
            "normalization uses the statistics of each batch"
        )
    if not group.metric.higher_is_better:
        notes.append(f"lower {group.metric.name} is better; BWT above 0: old tasks have improved")
    title = f"{group.metric.short} and BWT, mean ± standard deviation over n seeds,"
    return Table("acc", title, columns, rows, notes, {} if group.metric.unit else {"metric": group.metric.name})


def _rows(benchmark: str, variant: Variant) -> list[Row]:
    figures = paper.figures(benchmark, variant)
    told = _row(variant, figures)
    orders = [[metrics.average_accuracy([row]) for row in result.reshuffled] for result in variant.results]
    deviations = [deviation for deviation in map(statistics.deviation, orders) if deviation is not None]
    told[ORDER.name] = fmean(deviations) if deviations else None
    bare_is_same = all(result.accuracy_bare in (None, result.accuracy) for result in variant.results)
    tested = {view: variant.with_view(view) for view in OTHER_VIEWS if not (view == "bare" and bare_is_same)}
    return [told, *(_row(runs, None, view) for view, runs in tested.items() if runs)]  # the paper tells the task


def _row(variant: Variant, figures: paper.Figures | None, view: str = "told") -> Row:
    label = f"{variant.label}, {OTHER_VIEWS[view].label}" if view in OTHER_VIEWS else variant.label
    row: Row = {"variant": label, "seeds": len(variant.results)}
    for name, printed in zip(("acc", "bwt"), figures or (None, None), strict=True):
        ours = variant.figure(name, view)
        difference = ours.mean - printed.mean if ours and printed and not variant.shrunk else None
        row |= {name: ours, f"paper_{name}": printed, f"{name}_difference": difference}
    return row


def _reproduced(group: Group) -> list[str]:
    own = [
        f"{method} {acc.printed}" + (f" and {bwt.printed}" if bwt else "")
        for method, (acc, bwt) in paper.REPRODUCED.get(group.benchmark, {}).items()
        if group.of(method)
    ]
    return [f"the paper quotes reported figures here; its authors' own runs gave: {'; '.join(own)}"] if own else []


def differences(group: Group, against: Variant | None) -> Table | None:
    """Paired differences to one variant, for the variants that share at least two seeds with it."""
    rows: list[Row] = []
    for variant in group.variants:
        pairs = variant.pairs(against)
        if variant is not against and len(pairs) > 1:
            rows.append({"variant": variant.label, "seeds": len(pairs)})
            rows[-1] |= _paired("acc", [(ours.acc, theirs.acc) for ours, theirs in pairs])
            rows[-1] |= _paired("bwt", [(ours.bwt, theirs.bwt) for ours, theirs in pairs])
    if not rows or against is None:
        return None
    columns, form = [VARIANT, SEEDS], f"+{group.metric.form}"
    for name, heading in (("acc", group.metric.short), ("bwt", "BWT")):
        columns += [number(heading, f"{name}_difference", form), *paired(name, form)]
    title = f"Differences to {against.label} with the same seeds"
    note = "p: two-sided paired t-test, not corrected for the number of rows; none where all seeds differ equally"
    return Table("differences", title, columns, rows, [note], {"against": against.label})


def _paired(name: str, pairs: Sequence[tuple[float | None, float | None]]) -> Row:
    known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    if len(known) < len(pairs):
        return {}
    gain = statistics.paired(*zip(*known, strict=True))
    return {f"{name}_difference": gain.mean, f"{name}_interval": gain.interval, f"{name}_p": gain.p}


def sweep(group: Group, method: str) -> Table | None:
    """One row per variant of a method, with the values in which they differ."""
    variants = group.of(method)
    swept = list(variants[0].changes)
    if not swept:
        return None
    known = swept == ["eps2"] and (group.benchmark, method) == ("split-cifar100", "cuber")
    settings = [Column(name, name, setting_text, words=True) for name in swept]
    columns = [*settings, SEEDS, *(WITH_PAPER if known else measured(group.metric))]
    rows = [_row(v, paper.EPS2.get(v.changes["eps2"]) if known else None) | dict(v.changes) for v in variants]
    title, notes = f"{method} with different values of {' and '.join(swept)}", paper.incomplete(group) if known else []
    return Table("sweep", title, columns, rows, notes, {"method": method})


# Transfer

Selections = dict[int, int]
"""New task -> the old task that was in regime 3 in the most layers."""


def selected(group: Group, variant: Variant, against: Variant | None) -> Table | None:
    """BWT-S: the change of the old task selected for each new task; in ``against`` too, for the same selections."""
    selections = {seed: _selections(result) for seed, result in variant.by_seed.items()}
    tasks = sorted({task for chosen in selections.values() for task in chosen})
    if not tasks:
        return None
    form = f"+{group.metric.form}"
    columns = [words("task", "task"), words("selected (seeds)", "selected"), estimate(variant.label, "bwt_s", form)]
    context = {"variant": variant.label}
    theirs = [] if against is variant else [other for _, other in variant.pairs(against) if _one_by_one(other)]
    if theirs and against is not None:
        columns.append(estimate(against.label, "bwt_s_other", form))
        context["other"] = against.label
    same = variant.method == "cuber" and paper.has(variant) and not variant.shrunk
    printed = paper.SELECTED.get(group.benchmark, {}) if same else {}
    if printed:
        columns.append(words("paper: selected", "paper_selected"))
        columns.append(number("its cuber", "paper_bwt_s", "+.2f"))
        columns.append(number("its trgp", "paper_bwt_s_trgp", "+.2f"))

    def row(tasks: Sequence[int]) -> Row:
        ours = {"bwt_s": _changes(variant.results, selections, tasks)}
        return {**ours, "bwt_s_other": _changes(theirs, selections, tasks), **_of_paper(printed, tasks)}

    rows: list[Row] = []
    for task in tasks:
        votes = Counter(chosen[task] for chosen in selections.values() if task in chosen)
        shown = ", ".join(f"{old} ({count})" for old, count in sorted(votes.items()))
        rows.append({"task": str(task), "selected": shown, **row([task])})
    rows.append({"task": "average", **row(tasks), "paper_selected": None})
    title = f"BWT-S{' in %' if group.metric.unit else ''} of the old tasks that {variant.label} selected"
    return Table("selected", title, columns, rows, context=context)


def _selections(result: Result) -> Selections:
    chosen = {task: metrics.most_selected(regimes) for task, regimes in enumerate(result.regimes)}
    return {task: old for task, old in chosen.items() if old is not None}


def _changes(results: Sequence[Result], selections: dict[int, Selections], tasks: Sequence[int]) -> Estimate | None:
    """Mean BWT-S over the tasks of each result, over the results that selected any."""
    means = []
    for result in results:
        chosen = [(task, old) for task, old in selections[result.seed].items() if task in tasks]
        changes = [metrics.backward_transfer_of_selected(result.oriented, task, old) for task, old in chosen]
        means += [fmean(changes)] if changes else []
    return Estimate.of(means)


def _of_paper(printed: Mapping[int, tuple[int, float, float]], tasks: Sequence[int]) -> Row:
    known = [printed[task] for task in tasks if task in printed]
    if not known:
        return {}
    old, cuber, trgp = zip(*known, strict=True)
    return {"paper_selected": str(old[0]), "paper_bwt_s": fmean(cuber), "paper_bwt_s_trgp": fmean(trgp)}


def forward(group: Group, baseline: Variant | None) -> Table | None:
    """FWT: the accuracy of each task right after learning it, minus that of the baseline with the same seeds."""
    rows: list[Row] = []
    for variant in group.variants:
        pairs = [pair for pair in variant.pairs(baseline) if all(map(_one_by_one, pair))]
        if variant is not baseline and pairs:
            ours, theirs = ([fmean(metrics.diagonal(pair[n].oriented)) for pair in pairs] for n in (0, 1))
            gain = statistics.paired(ours, theirs)
            printed = paper.figure(paper.FORWARD, group.benchmark, variant)
            row: Row = {"variant": variant.label, "seeds": gain.count, "fwt": Estimate(gain.mean, gain.deviation)}
            row |= {"fwt_interval": gain.interval, "fwt_p": gain.p, "paper_fwt": printed}
            row["fwt_difference"] = None if printed is None or variant.shrunk else gain.mean - printed
            rows.append(row)
    if not rows or baseline is None:
        return None
    form = f"+{group.metric.form}"
    columns = [VARIANT, SEEDS, estimate("FWT %" if group.metric.unit else "FWT", "fwt", form), *paired("fwt", form)]
    notes = []
    if any(row["paper_fwt"] is not None for row in rows):
        columns += [number("paper", "paper_fwt", "+.2f"), number("diff.", "fwt_difference", "+.2f")]
        notes = paper.incomplete(group)
    return Table("forward", f"FWT over {baseline.label}", columns, rows, notes, {"baseline": baseline.label})


def _one_by_one(result: Result) -> bool:
    return len(result.accuracy) == len(result.tasks)


# Time and memory


def time(group: Group, baseline: Variant | None) -> Table:
    """Seconds per task without the tests, and relative to the baseline with the same seeds."""

    def seconds(result: Result) -> float:
        return sum(result.seconds) / len(result.tasks)

    rows: list[Row] = []
    for variant in group.variants:
        both = [(seconds(ours), seconds(theirs)) for ours, theirs in variant.pairs(baseline)]
        row: Row = {"variant": variant.label, "seeds": len(variant.results)}
        row |= {"seconds": Estimate.of(map(seconds, variant.results))}
        row |= {"relative": Estimate.of(ours / theirs for ours, theirs in both if theirs > 0)}
        rows.append(row | {"paper_relative": paper.figure(paper.TIME, group.benchmark, variant)})
    columns = [VARIANT, SEEDS, estimate("seconds per task", "seconds")]
    notes = [f"not all on one machine and version: {'; '.join(group.machines)}"] if len(group.machines) > 1 else []
    if baseline is not None:
        columns.append(estimate(f"/ {baseline.label}", "relative"))
        if any(row["paper_relative"] is not None for row in rows):
            columns.append(number("paper", "paper_relative"))
            notes += paper.incomplete(group)
    return Table("time", "Training time", columns, rows, notes, {"baseline": baseline.label} if baseline else {})


def memory(group: Group, baseline: Variant | None) -> Table:
    """Megabytes kept after the last task, by kind, and relative to the baseline."""
    unit = baseline.memory if baseline else 0
    rows: list[Row] = []
    for variant in group.variants:
        row: Row = {"variant": variant.label, "seeds": len(variant.results), "megabytes": variant.memory / 1e6}
        row |= {"relative": variant.memory / unit if unit else None}
        rows.append(row | {"megabytes_of": {kind: variant.bytes.get(kind, 0) / 1e6 for kind in group.memory_kinds}})

    def show(by_kind: dict[str, float]) -> str:
        return ", ".join(f"{kind} {size:.3f}" for kind, size in by_kind.items() if size) or "nothing"

    def parts(by_kind: dict[str, float]) -> dict[str, float]:
        return {f"_{kind}": size for kind, size in by_kind.items()}

    columns = [VARIANT, SEEDS, number("MB", "megabytes", ".3f")]
    columns += [number(f"/ {baseline.label}", "relative")] if baseline else []
    columns.append(Column("of which", "megabytes_of", show, parts, words=True))
    context = {"baseline": baseline.label} if baseline else {}
    return Table("memory", "Memory after the last task", columns, rows, context=context)
