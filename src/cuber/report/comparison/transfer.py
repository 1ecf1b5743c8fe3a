"""Tables of transfer: to the old tasks that were selected, and from them to the new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuber import metrics, statistics
from cuber.report.comparison import paper
from cuber.report.comparison.sheet import Estimate, Row, Sheet, between, estimate, number, probability, words

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
    other = against if against is not None and against is not variant and variant.pairs(against) else None
    theirs = [result for _, result in variant.pairs(other)] if other is not None else []
    printed = paper.SELECTED.get(group.benchmark, {}) if variant.method == "cuber" and not variant.shrunk else {}
    rows: list[Row] = []
    for task in tasks:
        votes = Counter(chosen[task] for chosen in selections.values() if task in chosen)
        old, of_cuber, of_trgp = printed.get(task, (None, None, None))
        rows.append(
            {
                "task": str(task),
                "selected": ", ".join(f"{name} ({count})" for name, count in sorted(votes.items())),
                "bwt_s": _changes(variant.results, selections, [task]),
                "bwt_s_other": _changes(theirs, selections, [task]),
                "paper_selected": None if old is None else str(old),
                "paper_bwt_s": of_cuber,
                "paper_bwt_s_trgp": of_trgp,
            }
        )
    rows.append(
        {
            "task": AVERAGE,
            "bwt_s": _changes(variant.results, selections, tasks),
            "bwt_s_other": _changes(theirs, selections, tasks),
            "paper_bwt_s": _average([of_cuber for _, of_cuber, _ in printed.values()]),
            "paper_bwt_s_trgp": _average([of_trgp for _, _, of_trgp in printed.values()]),
        }
    )
    columns = [words("task", "task"), words("selected (seeds)", "selected"), estimate(variant.label, "bwt_s", "+.2f")]
    if other is not None:
        columns.append(estimate(other.label, "bwt_s_other", "+.2f"))
    if printed:
        columns.append(words("paper: selected", "paper_selected"))
        columns.append(number("its cuber", "paper_bwt_s", "+.2f"))
        columns.append(number("its trgp", "paper_bwt_s_trgp", "+.2f"))
    title = f"BWT-S in % of the old tasks that {variant.label} selected"
    context = {"variant": variant.label} | ({"other": other.label} if other is not None else {})
    return [Sheet("selected", group.title, title, columns, rows, context=context)]


def _selections(result: Result) -> Selections:
    chosen = {task: metrics.most_selected(regimes) for task, regimes in enumerate(result.regimes)}
    return {task: old for task, old in chosen.items() if old is not None}


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


def _average(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


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
    columns = [words("variant", "variant"), number("n", "seeds", "d"), estimate("FWT %", "fwt", "+.2f")]
    columns += [between("95 % interval", "fwt_interval"), probability("p", "fwt_p")]
    if any(row["paper_fwt"] is not None for row in rows):
        columns += [number("paper", "paper_fwt", "+.2f"), number("diff.", "fwt_difference", "+.2f")]
    context = {"baseline": baseline.label}
    return [Sheet("forward", group.title, f"FWT over that of {baseline.label}", columns, rows, context=context)]


def _when_learnt(result: Result) -> float | None:
    """The mean accuracy of tasks right after they were learnt; None where all were learnt at once."""
    return statistics.mean(metrics.diagonal(result.accuracy)) if len(result.accuracy) == len(result.tasks) else None
