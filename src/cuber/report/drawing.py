"""Colors and marks of figures, matplotlib settings, and how figures are written.

Figures are drawn in the light colors; on the page each color is a CSS variable with another value in dark mode.
Markers and dashes differ too, as no dozen of colors can be told apart with every kind of color blindness.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

COLORS = {
    "cuber": ("#274dad", "#93bdff"),
    "trgp": ("#9b4804", "#fa974c"),
    "gpm": ("#3ca488", "#8eebbf"),
    "soft-cuber": ("#a038e8", "#c99bff"),
    "ewc": ("#af8707", "#f2d95c"),
    "hat": ("#1b7a94", "#4fc4e6"),
    "agem": ("#730d04", "#ff7061"),
    "er": ("#8f88de", "#8a86e8"),
    "owm": ("#c81868", "#f0559a"),
    "finetune": ("#56691c", "#a3b85c"),
    "multitask": ("#540951", "#e6a3dc"),
}
"""Colors of each method of this package in light and dark mode, so that it has the same ones in every report."""
SPARE = [("#5b6470", "#b4bcc8"), ("#d2601a", "#ffc9a0"), ("#0a5c36", "#4fae78"), ("#3a1f8f", "#9fb4d8")]
"""Colors of other methods, in the order of their names."""
PAIRS = [*COLORS.values(), *SPARE]
SERIES = [light for light, _ in PAIRS]
LIGHT = {"page": "#ffffff", "ink": "#1b2027", "quiet": "#59626e", "line": "#d9dee5"} | {
    f"c{place}": light for place, (light, _) in enumerate(PAIRS)
}
DARK = {"page": "#14171c", "ink": "#e8ebf0", "quiet": "#a3acb9", "line": "#343b46"} | {
    f"c{place}": dark for place, (_, dark) in enumerate(PAIRS)
}
AREAS = [
    *("#77aadd", "#eedd88", "#44bb99", "#ee8866", "#bbcc33", "#ffaabb"),
    *("#99ddff", "#c9b8dc", "#a880f8", "#d0f0d8", "#78a800", "#98d080"),
]
"""Colors of kinds of memory, paler than those of variants; the same in light and dark mode."""
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "p", "*", "<", ">"]
DASHES: list[Any] = ["-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1))]

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
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""No date and no version, so that the same results give the same bytes."""
VARIABLES = {color: f"var(--{name})" for name, color in LIGHT.items()}


class Mark:
    """Color, marker and dashes of a variant, the same in all figures and tables.

    Args:
        method: Place of its method among the colors.
        variant: Its place among the variants of the method, which share the color.
    """

    def __init__(self, method: int, variant: int = 0) -> None:
        self.number = method % len(PAIRS)
        self.color = SERIES[self.number]
        self.marker = MARKERS[(method + variant) % len(MARKERS)]
        self.dashes = DASHES[(method + variant) % len(DASHES)]


def method_place(method: str) -> int | None:
    """The place of a method of this package among the colors."""
    return list(COLORS).index(method) if method in COLORS else None


@contextmanager
def styled() -> Iterator[None]:
    """Context manager with the matplotlib settings of reports."""
    with warnings.catch_warnings(), matplotlib.rc_context():
        matplotlib.rcdefaults()  # independent of the user's matplotlibrc
        matplotlib.rcParams.update(RC)
        # Matplotlib's font lacks some letters, for example Chinese ones; browsers have them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as SVG and PNG; ``path`` has no suffix."""
    vector, pixels = path.with_name(f"{path.name}.svg"), path.with_name(f"{path.name}.png")
    figure.savefig(vector, metadata=NO_METADATA)
    figure.savefig(pixels, dpi=200, metadata={"Software": None})
    return [vector, pixels]


def inline(figure: Figure, name: str, description: str) -> str:
    """A figure as an SVG element for the page, with the colors and font of the page; ids begin with ``name``."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=NO_METADATA, transparent=True)
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", file.getvalue(), flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", lambda tag: _restyled(tag[0], name), " ".join(text[text.index("<svg") :].split()))
    start = f'role="img" aria-label="{escape(description)}">'
    return re.sub(r'<svg.*?(viewBox="[^"]*").*?>', lambda tag: f"<svg {tag[1]} {start}", text, count=1)


def _restyled(tag: str, name: str) -> str:
    """A tag with the ids, colors and font of the page, and coordinates with one decimal."""
    tag = re.sub(r" *font-family: [^;\"]*;?", "", tag).replace("xlink:href", "href")
    tag = re.sub(r"( id=\"| href=\"#|url\(#)", rf"\1{name}-", tag)
    tag = re.sub(r"#[0-9a-f]{6}\b", lambda color: VARIABLES.get(color[0], color[0]), tag)
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.1f}", tag)
