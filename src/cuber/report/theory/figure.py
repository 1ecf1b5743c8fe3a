"""A sweep over angles as a figure: the conditions, who wins, and the losses over the steps with their bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from cuber.report.plots import evenly
from cuber.report.style import AREAS, DASHES, LIGHT, SERIES, WIDTH

if TYPE_CHECKING:
    from cuber.theory.sweep import AngleResult, Sweep

SHOWN = 4
"""Angles whose losses are drawn step by step."""
RULE_1: dict[str, Any] = {"color": SERIES[1], "linestyle": DASHES[1], "label": "rule 1: not in the old subspace"}
RULE_2: dict[str, Any] = {"color": SERIES[0], "label": "rule 2: plain gradient descent"}
BOUND: dict[str, Any] = {"color": LIGHT["quiet"], "linestyle": DASHES[2], "label": "bound, where the theorem holds"}
STRIP = 0.045
"""Height of the strip that says where a theorem holds, as a share of the panel."""


def sweep_figure(sweep: Sweep) -> Figure:
    """Above, over the angle; below, over the steps at some angles."""
    figure = Figure((WIDTH, 6.2), layout="constrained")
    grid = figure.add_gridspec(3, 12)
    above = [figure.add_subplot(grid[0, 4 * place : 4 * place + 4]) for place in range(3)]
    _conditions(above[0], sweep)
    _gains(
        above[1],
        sweep,
        lambda s: s.advantage,
        "joint loss: rule 2's lead (%)",
        [("1 (1)", lambda s: s.theorem_1.holds), ("2 (1)", lambda s: s.theorem_2_1.holds)],
    )
    _gains(
        above[2],
        sweep,
        lambda s: s.backward_transfer,
        "old task: gain by rule 2 (%)",
        [("2 (2)", lambda s: s.theorem_2_2.holds), ("sharper", lambda s: s.theorem_2_2_sharper.holds)],
    )
    chosen = [sweep.results[place] for place in evenly(len(sweep.results), SHOWN)]
    for row, draw in enumerate((_joint, _old), 1):
        first = None
        for place, station in enumerate(chosen):
            width = 12 // len(chosen)
            axes = figure.add_subplot(grid[row, width * place : width * place + width])
            draw(axes, station)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            first = first or axes
            if row == 1:
                axes.set_title(f"{station.degrees:.0f}°")
            else:
                axes.set_xlabel("step")
        if first is not None:
            first.set_ylabel("joint loss (% of first)" if row == 1 else "old loss (% of first)")
    handles = {line.get_label(): line for axes in figure.axes[3:] for line in axes.get_lines()}
    figure.legend(handles=list(handles.values()), loc="outside lower left", ncols=3)
    figure.suptitle(
        f"{sweep.kind}, seed {sweep.seed}: a new task turned away from an old one", fontsize=8, x=0.01, ha="left"
    )
    return figure


# Over the angle


def _conditions(axes: Axes, sweep: Sweep) -> None:
    angles = [station.degrees for station in sweep.results]
    ratios, cosines = ([getattr(s.tasks, name) for s in sweep.results] for name in ("ratio", "cosine"))
    asked = [min(s.theorem_1.condition("positive correlation").asked, 1.05) for s in sweep.results]
    projection = [s.theorem_2_1.condition("sufficient projection").asked for s in sweep.results]
    axes.plot(angles, cosines, color=SERIES[0], label="cosine")
    axes.plot(angles, asked, color=SERIES[0], linestyle=DASHES[2], label="eps2 asked for")
    axes.plot(angles, ratios, color=SERIES[2], label="ratio")
    axes.plot(angles, projection, color=SERIES[2], linestyle=DASHES[2], label="eps1 asked for")
    axes.set_ylim(-1.08, 1.08)
    axes.set_title("definitions, and what is asked")
    axes.legend(loc="lower left", fontsize=6.5, handlelength=1.8, borderaxespad=0.1, labelspacing=0.2)
    _over_angles(axes)


def _gains(
    axes: Axes,
    sweep: Sweep,
    gain: Callable[[AngleResult], float],
    title: str,
    theorems: Sequence[tuple[str, Callable[[AngleResult], bool]]],
) -> None:
    angles, gains = [s.degrees for s in sweep.results], [100 * gain(s) for s in sweep.results]
    axes.axhline(0, color=LIGHT["quiet"], linewidth=0.8)
    axes.plot(angles, gains, color=SERIES[0], marker="o")
    low, high = min(0.0, *gains), max(0.0, *gains)
    room = (high - low or 1.0) * 0.08
    axes.set_ylim(low - room, high + room * (1 + 1.6 * len(theorems)))
    step = angles[1] - angles[0]
    for place, (name, holds) in enumerate(theorems):
        y = 1 - (place + 1) * 1.7 * STRIP
        for station in sweep.results:
            if holds(station):
                left = (station.degrees - step / 2 + 10) / 200
                axes.add_patch(_strip(axes, left, y, step / 200, AREAS[2 * place]))
        axes.text(
            0.99,
            y,
            f"theorem {name}" if name[0].isdigit() else name,
            transform=axes.transAxes,
            fontsize=6.5,
            ha="right",
        )
    axes.set_title(title)
    _over_angles(axes)


def _strip(axes: Axes, left: float, y: float, width: float, colour: str) -> Rectangle:
    return Rectangle((left, y), width, STRIP, transform=axes.transAxes, facecolor=colour, linewidth=0)


def _over_angles(axes: Axes) -> None:
    axes.set_xlim(-10, 190)
    axes.set_xticks([0, 45, 90, 135, 180])
    axes.set_xlabel("angle between the tasks (degrees)")


# Over the steps


def _joint(axes: Axes, station: AngleResult) -> None:
    bounds = station.joint_bounds if station.theorem_1.holds else None
    _losses(axes, station.by_rule_1.joint_losses, station.by_rule_2.joint_losses, bounds)


def _old(axes: Axes, station: AngleResult) -> None:
    bounds = station.old_bounds if station.theorem_2_2_sharper.holds else None
    _losses(axes, station.by_rule_1.old_losses, station.by_rule_2.old_losses, bounds)


def _losses(axes: Axes, by_rule_1: list[float], by_rule_2: list[float], bounds: list[float] | None) -> None:
    share = 100 / by_rule_2[0] if by_rule_2[0] else 1.0
    axes.plot([share * loss for loss in by_rule_1], **RULE_1)
    axes.plot([share * loss for loss in by_rule_2], **RULE_2)
    if bounds is not None:
        axes.plot([share * loss for loss in bounds], **BOUND)
