"""Tables of transfer: to the old tasks that were selected, and from them to the new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
    words,
)

if TYPE_CHECKING:
    from cuber.experiments.variants import Group, Variant
    from cuber.training import Result

AVERAGE = "average"

Selections = dict[int, int]
"""New task -> the old task that was in regime 3 in the most layers."""


# Backward, to the tasks that were selected


def selected(group: Group, against: Variant | None) -> list[Sheet]:
    """BWT-S: what each new task did to the old one selected for it; of ``against`` too, for the same selections."""
    return [sheet for variant in group.variants for sheet in _selected(group, variant, against)]


def _selected(group: Group, variant: Variant, against: Variant | None) -> list[Sheet]:
    selections = {result.seed: _selections(result) for result in variant.results}
    tasks = sorted({task for chosen in selections.values() for task in chosen})
    if not tasks:
        return []
    pairs = variant.pairs(against) if against is not None and against is not variant else []
    theirs = [result for _, result in pairs if _one_by_one(result)]
    printed = _printed(group, variant)

    def row(tasks: Sequence[int]) -> Row:
        ours = {"bwt_s": _changes(variant.results, selections, tasks)}
        return {**ours, "bwt_s_other": _changes(theirs, selections, tasks), **_papers(printed, tasks)}

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
    return [Sheet("selected", group.title, title, columns, rows, context=context)]


def _selections(result: Result) -> Selections:
    chosen = {task: metrics.most_selected(regimes) for task, regimes in enumerate(result.regimes)}
    return {task: old for task, old in chosen.items() if old is not None}


def _votes(selections: dict[int, Selections], task: int) -> str:
    """The old tasks that were selected for a new one, each with the number of seeds: "0 (2), 1 (1)"."""
    votes = Counter(chosen[task] for chosen in selections.values() if task in chosen)
    return ", ".join(f"{old} ({count})" for old, count in sorted(votes.items()))


def _changes(results: Sequence[Result], selections: dict[int, Selections], tasks: Sequence[int]) -> Estimate | None:
    """The mean BWT-S over the tasks of each result, over the results that have any."""
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


def _printed(group: Group, variant: Variant) -> Mapping[int, tuple[int, float, float]]:
    """The paper's selections, where they are of the same method on the same tasks."""
    same = variant.method == "cuber" and paper.has(variant) and not variant.shrunk
    return paper.SELECTED.get(group.benchmark, {}) if same else {}


def _papers(printed: Mapping[int, tuple[int, float, float]], tasks: Sequence[int]) -> Row:
    known = [printed[task] for task in tasks if task in printed]
    if not known:
        return {}
    old, of_cuber, of_trgp = zip(*known, strict=True)
    return {
        "paper_selected": str(old[0]) if len(tasks) == 1 else None,
        "paper_bwt_s": statistics.mean(of_cuber),
        "paper_bwt_s_trgp": statistics.mean(of_trgp),
    }


# Forward, over GPM


def forward(group: Group, baseline: Variant | None) -> list[Sheet]:
    """FWT over that of the baseline: how much better new tasks were learnt on the same seeds, right after learning."""
    rows: list[Row] = []
    for variant in group.variants:
        pairs = variant.pairs(baseline) if baseline is not None and variant is not baseline else []
        learnt = [(_when_learnt(ours), _when_learnt(theirs)) for ours, theirs in pairs]
        both = [(ours, theirs) for ours, theirs in learnt if ours is not None and theirs is not None]
        if both:
            gain = statistics.paired([ours for ours, _ in both], [theirs for _, theirs in both])
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
    columns += [between("95 % interval", "fwt_interval"), probability("p", "fwt_p")]
    known = any(row["paper_fwt"] is not None for row in rows)
    if known:
        columns += [number("paper", "paper_fwt", "+.2f"), number("diff.", "fwt_difference", "+.2f")]
    title, notes = f"FWT over that of {baseline.label}", paper.cut(group) if known else []
    return [Sheet("forward", group.title, title, columns, rows, notes, {"baseline": baseline.label})]


def _when_learnt(result: Result) -> float | None:
    """The mean accuracy of tasks right after they were learnt; None where all were learnt at once."""
    return statistics.mean(metrics.diagonal(result.accuracy)) if _one_by_one(result) else None


def _one_by_one(result: Result) -> bool:
    return len(result.accuracy) == len(result.tasks)
