"""Table and figure of `cuber theory`, a sweep over the angle between an old and a new task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuber.core.encoding import encodable
from cuber.report.drawing import AREAS, DASHES, LIGHT, SERIES, WIDTH
from cuber.report.typography import number

if TYPE_CHECKING:
    from cuber.theory.sweep import AngleResult, Sweep

NOTICEABLE = 1e-5
"""Relative gains below this count as no change."""
HEADINGS = ("angle", "ratio", "cosine", "asked", "step", "1 (1)", "2 (1)", "2 (2)", "sharper", "joint %", "old %")
SHOWN = 4
"""Angles whose losses are drawn step by step."""
RULE_1: dict[str, Any] = {"color": SERIES[1], "linestyle": DASHES[1], "label": "rule 1: not in the old subspace"}
RULE_2: dict[str, Any] = {"color": SERIES[0], "label": "rule 2: plain gradient descent"}
BOUND: dict[str, Any] = {"color": LIGHT["quiet"], "linestyle": DASHES[2], "label": "bound, where the theorem holds"}


def show_sweep(sweep: Sweep, console: Console) -> None:
    """Print a row for each angle (the definitions, the theorems' conditions, the gains of rule 2) and a summary."""
    table = Table(box=box.SIMPLE, padding=0, show_edge=False)
    for title in HEADINGS:
        table.add_column(title, justify="right", no_wrap=True)
    for result in sweep.results:
        asked = result.theorem_1.condition("positive correlation").asked
        theorems = (result.theorem_1, result.theorem_2_1, result.theorem_2_2, result.theorem_2_2_sharper)
        table.add_row(
            encodable(f"{result.degrees:.0f}°", console.encoding),
            number(result.tasks.ratio),
            number(result.tasks.cosine, "+.2f"),
            number(asked) if asked <= 1 else "> 1",
            f"{result.by_rule_2.step_size:.1g}",
            *("holds" if theorem.holds else "-" for theorem in theorems),
            *(_gain(share) for share in (result.advantage, result.backward_transfer)),
        )
    title = f"Rule 2 against rule 1 ({sweep.kind}, seed {sweep.seed}, {sweep.steps} steps)"
    console.print(Text(title, style="bold"))
    console.print(table)
    first, count = sweep.results[0].tasks, len(sweep.results)
    joint = [result.theorem_2_1.holds for result in sweep.results if result.advantage > NOTICEABLE]
    old = [
        result.theorem_2_2.holds or result.theorem_2_2_sharper.holds
        for result in sweep.results
        if result.backward_transfer > NOTICEABLE
    ]
    for sentence in (
        f"at 0 degrees H is {first.H} and B is {first.B}",
        "ratio, cosine: definitions 1 and 2; asked: cosine required by theorem 1; sharper: 2 (2) with k for k^1.5",
        f"joint: rule 2 ends with the lower joint loss at {_counted(joint, count)}",
        f"old: rule 2 improves the old task at {_counted(old, count)}",
    ):
        console.print(sentence, highlight=False, soft_wrap=True)


def _counted(predicted: list[bool], angles: int) -> str:
    return f"{len(predicted)} of {angles} angles, {predicted.count(False)} of them not predicted by a theorem"


def _gain(share: float) -> Text:
    style = "green" if share > NOTICEABLE else "red" if share < -NOTICEABLE else ""
    return Text(number(100 * share, "+.2f"), style=style)


def sweep_figure(sweep: Sweep) -> Figure:
    """Conditions and gains over the angle, and losses over the steps at some angles."""
    figure, results = Figure((WIDTH, 6.2), layout="constrained"), sweep.results
    grid = figure.add_gridspec(3, 12)
    above = [figure.add_subplot(grid[0, 4 * place : 4 * place + 4]) for place in range(3)]
    _conditions(above[0], results)
    above[1].set_title("joint loss: rule 2's lead (%)")
    _gains(above[1], results, "advantage", {"theorem 1 (1)": "theorem_1", "theorem 2 (1)": "theorem_2_1"})
    above[2].set_title("old task: gain of rule 2 (%)")
    _gains(above[2], results, "backward_transfer", {"theorem 2 (2)": "theorem_2_2", "sharper": "theorem_2_2_sharper"})
    for axes in above:
        axes.set_xticks([0, 45, 90, 135, 180])
        axes.set_xlabel("angle between the tasks (degrees)")
        axes.legend(loc="best", fontsize=6.5, handlelength=1.8, borderaxespad=0.1, labelspacing=0.2)
    chosen = np.linspace(0, len(results) - 1, min(len(results), SHOWN)).round().astype(int)
    width = 12 // len(chosen)
    for place, result in enumerate(results[index] for index in chosen):
        columns = slice(width * place, width * place + width)
        joint, old = (figure.add_subplot(grid[row, columns]) for row in (1, 2))
        _losses(joint, result, "joint", bounded=result.theorem_1.holds)
        _losses(old, result, "old", bounded=result.theorem_2_2_sharper.holds)
        joint.set_title(f"{result.degrees:.0f}°")
        old.set_xlabel("step")
        if place == 0:
            joint.set_ylabel("joint loss (% of first)")
            old.set_ylabel("old loss (% of first)")
    handles = {line.get_label(): line for axes in figure.axes[3:] for line in axes.get_lines()}
    figure.legend(handles=list(handles.values()), loc="outside lower left", ncols=3)
    title = f"{sweep.kind}, seed {sweep.seed}: angle between an old and a new task"
    figure.suptitle(title, fontsize=8, x=0.01, ha="left")
    return figure


def _conditions(axes: Axes, results: Sequence[AngleResult]) -> None:
    angles = [result.degrees for result in results]
    asked = [min(result.theorem_1.condition("positive correlation").asked, 1.05) for result in results]
    projection = [result.theorem_2_1.condition("sufficient projection").asked for result in results]
    axes.plot(angles, [result.tasks.cosine for result in results], color=SERIES[0], label="cosine")
    axes.plot(angles, asked, color=SERIES[0], linestyle=DASHES[2], label="required eps2")
    axes.plot(angles, [result.tasks.ratio for result in results], color=SERIES[2], label="ratio")
    axes.plot(angles, projection, color=SERIES[2], linestyle=DASHES[2], label="required eps1")
    axes.set_ylim(-1.08, 1.08)
    axes.set_title("definitions and conditions")


def _gains(axes: Axes, results: Sequence[AngleResult], gain: str, theorems: Mapping[str, str]) -> None:
    """A gain over the angle; larger rings mark the angles where a theorem holds."""
    axes.axhline(0, color=LIGHT["quiet"], linewidth=0.8)
    gains = {result.degrees: 100 * getattr(result, gain) for result in results}
    axes.plot(list(gains), list(gains.values()), color=SERIES[0], marker="o")
    for place, (name, theorem) in enumerate(theorems.items()):
        held = [result.degrees for result in results if getattr(result, theorem).holds]
        ring: dict[str, Any] = {"facecolors": "none", "edgecolors": AREAS[2 + place], "s": 40 + 50 * place}
        axes.scatter(held, [gains[angle] for angle in held], label=name, **ring)


def _losses(axes: Axes, result: AngleResult, task: str, *, bounded: bool) -> None:
    """Losses of both rules over the steps, in percent of the first, with the theorem's bound."""
    by_rule_1, by_rule_2 = (getattr(rule, f"{task}_losses") for rule in (result.by_rule_1, result.by_rule_2))
    percent = 100 / by_rule_2[0] if by_rule_2[0] else 1.0
    axes.plot(percent * np.array(by_rule_1), **RULE_1)
    axes.plot(percent * np.array(by_rule_2), **RULE_2)
    if bounded:
        axes.plot(percent * np.array(getattr(result, f"{task}_bounds")), **BOUND)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
