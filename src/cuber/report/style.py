"""Colors, marks of the variants, and matplotlib settings.

Figures are drawn in the light colors; on the page each color is a CSS variable with another value in dark mode. The
colors differ under each of the three kinds of color blindness, and no meaning depends on color alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LIGHT = {
    "page": "#ffffff",
    "ink": "#1b2027",
    "quiet": "#59626e",
    "line": "#d9dee5",
    "c0": "#274dad",
    "c1": "#9b4804",
    "c2": "#3ca488",
    "c3": "#540951",
    "c4": "#af8707",
    "c5": "#1b7a94",
    "c6": "#730d04",
    "c7": "#8f88de",
    "c8": "#c81868",
    "c9": "#a038e8",
}
DARK = {
    "page": "#14171c",
    "ink": "#e8ebf0",
    "quiet": "#a3acb9",
    "line": "#343b46",
    "c0": "#7eaeff",
    "c1": "#fa974c",
    "c2": "#8eebbf",
    "c3": "#c873ae",
    "c4": "#f2d95c",
    "c5": "#6fd3ee",
    "c6": "#e56b5c",
    "c7": "#9384ee",
    "c8": "#b04060",
    "c9": "#7050d0",
}

SERIES = [LIGHT[f"c{place}"] for place in range(10)]
"""Colors of variants, one for each method of the paper."""
AREAS = [
    *("#77aadd", "#eedd88", "#44bb99", "#ee8866", "#bbcc33", "#ffaabb"),
    *("#99ddff", "#c9b8dc", "#a880f8", "#d0f0d8", "#78a800", "#98d080"),
]
"""Colors of kinds of memory, paler than those of variants; the same in light and dark mode."""
ON_AREA = "#16181d"

WHITE, BLACK = "#ffffff", "#0d1420"
HEAT_LIGHT = [
    *(("#eef4fb", LIGHT["ink"]), ("#d6e5f7", LIGHT["ink"]), ("#bdd6f2", LIGHT["ink"]), ("#a5c7ed", LIGHT["ink"])),
    *(("#8db8e8", LIGHT["ink"]), ("#709dd5", LIGHT["ink"]), ("#4773b8", WHITE), ("#335fa8", WHITE), ("#1d4c9c", WHITE)),
]
HEAT_DARK = [
    *(("#1c232d", WHITE), ("#213147", WHITE), ("#263f63", WHITE), ("#2b4d80", WHITE), ("#2f5c9e", WHITE)),
    *(("#4169a8", WHITE), ("#6b93ce", BLACK), ("#89b0e6", BLACK), ("#a9cdff", BLACK)),
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


@dataclass(frozen=True)
class Mark:
    """Color, marker and dashes of a variant, the same in all figures and tables."""

    place: int

    @property
    def number(self) -> int:
        """Number of the color."""
        return self.place % len(SERIES)

    @property
    def color(self) -> str:
        return SERIES[self.number]

    @property
    def marker(self) -> str:
        return MARKERS[self.place % len(MARKERS)]

    @property
    def dashes(self) -> Any:
        return DASHES[self.place % len(DASHES)]


WIDTH = 7.2
"""Width of a figure in inches, with a font size of 8 points as in a paper."""

RC: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.0,
    "axes.labelcolor": LIGHT["quiet"],
    "axes.edgecolor": LIGHT["quiet"],
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": LIGHT["line"],
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.color": LIGHT["quiet"],
    "ytick.color": LIGHT["quiet"],
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "text.color": LIGHT["ink"],
    "text.parse_math": False,  # task names may contain $
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
    "figure.facecolor": LIGHT["page"],
    "axes.facecolor": "none",
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",
    "svg.hashsalt": "cuber",  # reproducible files
}
