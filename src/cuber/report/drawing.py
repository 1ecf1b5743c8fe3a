"""Figures as SVG inside a page, and as files."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from cuber.report.style import LIGHT, RC

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""Nothing of when and by what: the same results make the same bytes."""
VARIABLES = {colour: f"var(--{name})" for name, colour in LIGHT.items()}
IDENTIFIED = ("path", "clipPath")
DOTS_PER_INCH = 200


@contextmanager
def styled() -> Iterator[None]:
    """While open, figures are made and drawn as reports want them."""
    with warnings.catch_warnings(), matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user has chosen for other figures
        matplotlib.rcParams.update(RC)
        # Chinese names are no letters of matplotlib's own font; browsers have them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as SVG and as PNG, ``path`` without its ending."""
    vector, pixels = path.with_name(f"{path.name}.svg"), path.with_name(f"{path.name}.png")
    figure.savefig(vector, metadata=NO_METADATA)
    figure.savefig(pixels, dpi=DOTS_PER_INCH, metadata={"Software": None})
    return [vector, pixels]


def inline(figure: Figure, name: str, description: str) -> str:
    """A figure as an SVG element for a page: with the page's colours and letters, ids that begin with ``name``."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata=NO_METADATA, transparent=True)
    root = ElementTree.fromstring(file.getvalue())
    for element in root.iter():
        element.tag = _local(element.tag)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.attrib = {
            _local(key): _attribute(_local(key), value, name)
            for key, value in element.attrib.items()
            if _local(key) != "id" or element.tag in IDENTIFIED
        }
        if element.tag != "text":
            element.text = None
        element.tail = None
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": description}
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "d":
        return " ".join(_rounded(value).split())
    if key in ("x", "y", "transform", "points"):
        return _rounded(value)
    value = value.replace("url(#", f"url(#{name}-")
    if key == "href":
        return value.replace("#", f"#{name}-", 1)
    if key == "style":
        value = re.sub(r" *font-family: [^;]*;?", "", value)
        return re.sub(r"#[0-9a-f]{6}", lambda colour: VARIABLES.get(colour[0], colour[0]), value)
    return value


def _rounded(numbers: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), numbers)
