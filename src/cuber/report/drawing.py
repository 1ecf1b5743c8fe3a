"""Write figures as SVG for the page, and as SVG and PNG files."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from cuber.report.style import LIGHT, RC

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""No date and no version, so that the same results give the same bytes."""
VARIABLES = {color: f"var(--{name})" for name, color in LIGHT.items()}
DOTS_PER_INCH = 200


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
    figure.savefig(pixels, dpi=DOTS_PER_INCH, metadata={"Software": None})
    return [vector, pixels]


def inline(figure: Figure, name: str, description: str) -> str:
    """A figure as an SVG element for the page, with the colors and font of the page; ids begin with ``name``."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=NO_METADATA, transparent=True)
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>|<!--.*?-->", "", file.getvalue(), flags=re.DOTALL)
    text = re.sub(r"(?<= id=\"|url\(#)|(?<=xlink:href=\"#)", f"{name}-", text[text.index("<svg") :])
    text = re.sub(r" *font-family: [^;\"]*;?", "", text.replace("xlink:href", "href"))
    text = re.sub(r"#[0-9a-f]{6}\b", lambda color: VARIABLES.get(color[0], color[0]), text)
    text = re.sub(r"\d+\.\d\d+", lambda number: f"{float(number[0]):.1f}", " ".join(text.split()))
    size = re.search(r"viewBox=\"[^\"]*\"", text)
    assert size is not None
    return re.sub("<svg.*?>", lambda _: f'<svg {size[0]} role="img" aria-label="{escape(description)}">', text, count=1)
