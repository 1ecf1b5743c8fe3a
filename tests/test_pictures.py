"""The picture of ``cuber run`` in the README and the guides shows what the command prints now."""

from __future__ import annotations

import re
import runpy
from collections import defaultdict
from html import unescape
from pathlib import Path

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def lines(svg: str) -> list[str]:
    """Return the lines of a terminal that rich has drawn."""
    texts = re.findall(r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*clip-path[^>]*>([^<]*)</text>', svg)
    by_height: dict[float, list[tuple[float, str]]] = defaultdict(list)
    for x, y, text in texts:
        by_height[float(y)].append((float(x), unescape(text).replace("\xa0", " ")))
    return [" ".join(text for _, text in sorted(by_height[y])) for y in sorted(by_height)]


def words(line: str) -> list[str]:
    """Return the words of a line, without numbers and units: these depend on the machine."""
    return re.findall(r"[^\W\d_][\w.]*", re.sub(r"[\d.]+ (kB|MB|s)\b", "", line))


def test_the_picture_of_a_run_has_the_lines_of_the_command() -> None:
    now = runpy.run_path(str(IMAGES / "make.py"), run_name="make")["recorded_run"]().export_text().splitlines()
    shown = lines((IMAGES / "run.svg").read_text())
    assert [words(line) for line in shown if words(line)] == [words(line) for line in now if words(line)]
    assert len(shown) >= len(now)  # none is cut
    assert shown[-1].rstrip().endswith(")")
