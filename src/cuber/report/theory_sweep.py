"""Table and figure of `cuber theory`, a sweep over the angle between an old and a new task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuber.core.encoding import encodable
from cuber.report.drawing import AREAS, DASHES, LIGHT, SERIES, WIDTH
from cuber.report.plots import evenly
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
STRIP = 0.045
"""Height of the strip that marks where a theorem holds, as a fraction of the panel."""


# Table


def show_sweep(sweep: Sweep, console: Console) -> None:
    """Print the table of a sweep and its summary."""
    first = sweep.results[0].tasks
    title = f"Rule 2 against rule 1 ({sweep.kind}, seed {sweep.seed}, {sweep.steps} steps)"
    console.print(Text(title, style="bold"))
    console.print(sweep_table(sweep, console.encoding))
    console.print(f"at 0 degrees H is {first.H} and B is {first.B}", highlight=False, soft_wrap=True)
    for sentence in sentences(sweep):
        console.print(sentence, highlight=False, soft_wrap=True)


def sweep_table(sweep: Sweep, encoding: str) -> Table:
    """One row per angle: the definitions, the theorems' conditions, and the gains of rule 2."""
    table = Table(box=box.SIMPLE, padding=0, show_edge=False)
    for title in HEADINGS:
        table.add_column(title, justify="right", no_wrap=True)
    for station in sweep.results:
        tasks, correlation = station.tasks, station.theorem_1.condition("positive correlation")
        theorems = (station.theorem_1, station.theorem_2_1, station.theorem_2_2, station.theorem_2_2_sharper)
        table.add_row(
            encodable(f"{station.degrees:.0f}°", encoding),
            number(tasks.ratio),
            number(tasks.cosine, "+.2f"),
            number(correlation.asked) if correlation.asked <= 1 else "> 1",
            f"{station.by_rule_2.step_size:.1g}",
            *(Text("holds", style="green") if theorem.holds else Text("-") for theorem in theorems),
            _gain(station.advantage),
            _gain(station.backward_transfer),
        )
    return table


def sentences(sweep: Sweep) -> list[str]:
    """Where rule 2 wins, and where no theorem predicts it."""
    joint = _counted(sweep, lambda s: s.advantage > NOTICEABLE, lambda s: s.theorem_2_1.holds)
    old = _counted(
        sweep, lambda s: s.backward_transfer > NOTICEABLE, lambda s: s.theorem_2_2.holds or s.theorem_2_2_sharper.holds
    )
    return [
        "ratio, cosine: definitions 1 and 2; asked: cosine required by theorem 1; sharper: 2 (2) with k for k^1.5",
        f"joint: rule 2 ends with the lower joint loss at {joint}",
        f"old: rule 2 improves the old task at {old}",
    ]


def _counted(sweep: Sweep, won: Callable[[AngleResult], bool], predicted: Callable[[AngleResult], bool]) -> str:
    winners = [station for station in sweep.results if won(station)]
    unpredicted = sum(not predicted(station) for station in winners)
    return f"{len(winners)} of {len(sweep.results)} angles, {unpredicted} of them not predicted by a theorem"


def _gain(share: float) -> Text:
    style = "green" if share > NOTICEABLE else "red" if share < -NOTICEABLE else ""
    return Text(number(100 * share, "+.2f"), style=style)


# Figure


def sweep_figure(sweep: Sweep) -> Figure:
    """Conditions and gains over the angle, and losses over the steps at some angles."""
    figure = Figure((WIDTH, 6.2), layout="constrained")
    grid = figure.add_gridspec(3, 12)
    above = [figure.add_subplot(grid[0, 4 * place : 4 * place + 4]) for place in range(3)]
    _conditions(above[0], sweep.results)
    _gains(above[1], sweep.results, "advantage", {"theorem 1 (1)": "theorem_1", "theorem 2 (1)": "theorem_2_1"})
    _gains(
        above[2],
        sweep.results,
        "backward_transfer",
        {"theorem 2 (2)": "theorem_2_2", "sharper": "theorem_2_2_sharper"},
    )
    above[1].set_title("joint loss: rule 2's lead (%)")
    above[2].set_title("old task: gain of rule 2 (%)")
    for axes in above:
        axes.set_xlim(-10, 190)
        axes.set_xticks([0, 45, 90, 135, 180])
        axes.set_xlabel("angle between the tasks (degrees)")
    chosen = [sweep.results[place] for place in evenly(len(sweep.results), SHOWN)]
    width = 12 // len(chosen)
    for place, station in enumerate(chosen):
        columns = slice(width * place, width * place + width)
        joint, old = (figure.add_subplot(grid[row, columns]) for row in (1, 2))
        _losses(joint, station, "joint", bounded=station.theorem_1.holds)
        _losses(old, station, "old", bounded=station.theorem_2_2_sharper.holds)
        joint.set_title(f"{station.degrees:.0f}°")
        old.set_xlabel("step")
        if place == 0:
            joint.set_ylabel("joint loss (% of first)")
            old.set_ylabel("old loss (% of first)")
    handles = {line.get_label(): line for axes in figure.axes[3:] for line in axes.get_lines()}
    figure.legend(handles=list(handles.values()), loc="outside lower left", ncols=3)
    title = f"{sweep.kind}, seed {sweep.seed}: angle between an old and a new task"
    figure.suptitle(title, fontsize=8, x=0.01, ha="left")
    return figure


def _conditions(axes: Axes, stations: Sequence[AngleResult]) -> None:
    angles = [station.degrees for station in stations]
    ratios, cosines = ([getattr(s.tasks, name) for s in stations] for name in ("ratio", "cosine"))
    asked = [min(s.theorem_1.condition("positive correlation").asked, 1.05) for s in stations]
    projection = [s.theorem_2_1.condition("sufficient projection").asked for s in stations]
    axes.plot(angles, cosines, color=SERIES[0], label="cosine")
    axes.plot(angles, asked, color=SERIES[0], linestyle=DASHES[2], label="required eps2")
    axes.plot(angles, ratios, color=SERIES[2], label="ratio")
    axes.plot(angles, projection, color=SERIES[2], linestyle=DASHES[2], label="required eps1")
    axes.set_ylim(-1.08, 1.08)
    axes.set_title("definitions and conditions")
    axes.legend(loc="lower left", fontsize=6.5, handlelength=1.8, borderaxespad=0.1, labelspacing=0.2)


def _gains(axes: Axes, stations: Sequence[AngleResult], gain: str, theorems: Mapping[str, str]) -> None:
    """A gain over the angle, with strips where theorems hold."""
    angles, gains = [s.degrees for s in stations], [100 * getattr(s, gain) for s in stations]
    axes.axhline(0, color=LIGHT["quiet"], linewidth=0.8)
    axes.plot(angles, gains, color=SERIES[0], marker="o")
    low, high = min(0.0, *gains), max(0.0, *gains)
    margin = (high - low or 1.0) * 0.08
    axes.set_ylim(low - margin, high + margin * (1 + 1.6 * len(theorems)))
    step = angles[1] - angles[0]
    in_axes: dict[str, Any] = {"transform": axes.transAxes}
    for place, (name, theorem) in enumerate(theorems.items()):
        y = 1 - (place + 1) * 1.7 * STRIP
        for station in stations:
            if getattr(station, theorem).holds:
                corner = ((station.degrees - step / 2 + 10) / 200, y)
                color = AREAS[2 * place]
                axes.add_patch(Rectangle(corner, step / 200, STRIP, facecolor=color, linewidth=0, **in_axes))
        axes.text(0.99, y, name, fontsize=6.5, ha="right", **in_axes)


def _losses(axes: Axes, station: AngleResult, task: str, *, bounded: bool) -> None:
    """Losses of both rules over the steps, in percent of the first, with the theorem's bound."""
    by_rule_1, by_rule_2 = (getattr(rule, f"{task}_losses") for rule in (station.by_rule_1, station.by_rule_2))
    percent = 100 / by_rule_2[0] if by_rule_2[0] else 1.0
    axes.plot([percent * loss for loss in by_rule_1], **RULE_1)
    axes.plot([percent * loss for loss in by_rule_2], **RULE_2)
    if bounded:
        axes.plot([percent * loss for loss in getattr(station, f"{task}_bounds")], **BOUND)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
