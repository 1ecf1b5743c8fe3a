"""Tables of transfer: backward to the selected old tasks (BWT-S), and forward to new tasks (FWT)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cuber import metrics
from cuber.report import statistics
from cuber.report.comparison import paper
from cuber.report.model import Estimate, Group, Variant
from cuber.report.table import SEEDS, VARIANT, Row, Table, estimate, interval, number, probability, words

if TYPE_CHECKING:
    from cuber.training import Result

AVERAGE = "average"

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
    rows.append({"task": AVERAGE, **row(tasks)})
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
        chosen = selections[result.seed]
        changes = [
            metrics.backward_transfer_of_selected(result.accuracy, task, chosen[task])
            for task in tasks
            if task in chosen
        ]
        means += [statistics.mean(changes)] if changes else []
    return Estimate.of(means)


def _of_paper(printed: Mapping[int, tuple[int, float, float]], tasks: Sequence[int]) -> Row:
    known = [printed[task] for task in tasks if task in printed]
    if not known:
        return {}
    old, of_cuber, of_trgp = zip(*known, strict=True)
    return {
        "paper_selected": str(old[0]) if len(tasks) == 1 else None,
        "paper_bwt_s": statistics.mean(of_cuber),
        "paper_bwt_s_trgp": statistics.mean(of_trgp),
    }


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
            rows.append(
                {
                    "variant": variant.label,
                    "seeds": gain.count,
                    "fwt": Estimate(gain.mean, gain.deviation),
                    "fwt_interval": gain.interval,
                    "fwt_p": gain.p,
                    "paper_fwt": printed,
                    "fwt_difference": None if printed is None or variant.shrunk else gain.mean - printed,
                }
            )
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
