"""Colors, marks of the variants, and matplotlib settings.

Figures are drawn in the light colors; on the page each color is a CSS variable with another value in dark mode. The
colors differ under each of the three kinds of color blindness, and no meaning depends on color alone.
"""

from __future__ import annotations

from typing import Any

LIGHT_SERIES = "#274dad #9b4804 #3ca488 #540951 #af8707 #1b7a94 #730d04 #8f88de #c81868 #a038e8"
DARK_SERIES = "#7eaeff #fa974c #8eebbf #c873ae #f2d95c #6fd3ee #e56b5c #9384ee #b04060 #7050d0"
LIGHT = {"page": "#ffffff", "ink": "#1b2027", "quiet": "#59626e", "line": "#d9dee5"} | {
    f"c{place}": color for place, color in enumerate(LIGHT_SERIES.split())
}
DARK = {"page": "#14171c", "ink": "#e8ebf0", "quiet": "#a3acb9", "line": "#343b46"} | {
    f"c{place}": color for place, color in enumerate(DARK_SERIES.split())
}
SERIES = LIGHT_SERIES.split()
"""Colors of variants, one for each method of the paper."""
AREAS = [
    *("#77aadd", "#eedd88", "#44bb99", "#ee8866", "#bbcc33", "#ffaabb"),
    *("#99ddff", "#c9b8dc", "#a880f8", "#d0f0d8", "#78a800", "#98d080"),
]
"""Colors of kinds of memory, paler than those of variants; the same in light and dark mode."""
ON_AREA = "#16181d"

WHITE, BLACK = "#ffffff", "#0d1420"
HEAT_LIGHT = [(color, LIGHT["ink"]) for color in ["#eef4fb", "#d6e5f7", "#bdd6f2", "#a5c7ed", "#8db8e8", "#709dd5"]] + [
    (color, WHITE) for color in ["#4773b8", "#335fa8", "#1d4c9c"]
]
HEAT_DARK = [(color, WHITE) for color in ["#1c232d", "#213147", "#263f63", "#2b4d80", "#2f5c9e", "#4169a8"]] + [
    (color, BLACK) for color in ["#6b93ce", "#89b0e6", "#a9cdff"]
]
"""From low to high: the colors of a cell and of its text."""

DEMOTED = 4
REGIMES = {
    1: "1: only protected",
    2: "2: reused",
    3: "3: may improve",
    DEMOTED: "↓n: demoted from 3 to 2 after epoch n",
}
REGIMES_LIGHT = {
    1: ("#edeff2", LIGHT["quiet"]),
    2: ("#bdd6f2", LIGHT["ink"]),
    3: ("#1d4c9c", WHITE),
    DEMOTED: ("#f1c564", LIGHT["ink"]),
}
REGIMES_DARK = {
    1: ("#22272f", DARK["quiet"]),
    2: ("#2b4d80", WHITE),
    3: ("#a9cdff", BLACK),
    DEMOTED: ("#d79b32", BLACK),
}

MARKERS = ["o", "s", "^", "D", "v", "P", "X", "p", "*", "<", ">"]
DASHES: list[Any] = ["-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1))]


class Mark:
    """Color, marker and dashes of the variant at a place, the same in all figures and tables."""

    def __init__(self, place: int) -> None:
        self.number = place % len(SERIES)
        """Number of the color."""
        self.color = SERIES[self.number]
        self.marker = MARKERS[place % len(MARKERS)]
        self.dashes = DASHES[place % len(DASHES)]


WIDTH = 7.2
"""Width of a figure in inches, with a font size of 8 points as in a paper."""

RC: dict[Any, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize"), 8.0),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 7.5),
    **dict.fromkeys(("axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), LIGHT["quiet"]),
    **dict.fromkeys(("axes.linewidth", "grid.linewidth"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0.0),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow", "axes.unicode_minus"), True),
    "font.family": ["DejaVu Sans"],
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "grid.color": LIGHT["line"],
    "text.color": LIGHT["ink"],
    "text.parse_math": False,  # task names may contain $
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
    "figure.facecolor": LIGHT["page"],
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",
    "svg.hashsalt": "cuber",  # reproducible files
}
