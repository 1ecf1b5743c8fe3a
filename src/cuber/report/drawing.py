"""Write figures as SVG for the page, and as SVG and PNG files."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from cuber.report.style import LIGHT, RC

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""No date and no version, so that the same results give the same bytes."""
VARIABLES = {color: f"var(--{name})" for name, color in LIGHT.items()}
IDENTIFIED = ("path", "clipPath")
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
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata=NO_METADATA, transparent=True)
    root = ElementTree.fromstring(file.getvalue())
    for element in root.iter():
        element.tag = _local(element.tag)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("metadata", "style"):
                parent.remove(child)
    used = [element.attrib["id"] for element in root.iter() if element.tag in IDENTIFIED and "id" in element.attrib]
    ids = {old: f"{name}-{number}" for number, old in enumerate(used)}
    for element in root.iter():
        plain = {_local(key): value for key, value in element.attrib.items()}
        if plain.get("id") not in ids:
            plain.pop("id", None)  # ids of groups are not referred to
        if "rotate(-0" in plain.get("transform", ""):
            plain.pop("transform")
        element.attrib = {key: _attribute(key, value, ids) for key, value in plain.items()}
        if element.tag != "text":
            element.text = None
        element.tail = None
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": description}
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _attribute(key: str, value: str, ids: Mapping[str, str]) -> str:
    """The value of an attribute, shortened, with the ids and colors of the page."""
    if key == "id":
        return ids[value]
    if key == "href":
        return f"#{ids[value.removeprefix('#')]}"
    if key == "clip-path":
        return f"url(#{ids[value.removeprefix('url(#').removesuffix(')')]})"
    if key == "style":
        value = re.sub(r" *font-family: [^;]*;?", "", value).replace("; ", ";").replace(": ", ":")
        return re.sub(r"#[0-9a-f]{6}", lambda color: VARIABLES.get(color[0], color[0]), value)
    if key in ("d", "x", "y", "transform"):
        numbers = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), value)
        return " ".join(numbers.split())
    return value
