"""Readers of the official file formats."""

from __future__ import annotations

from pathlib import Path

from cuber.datasets.readers.array_files import ARRAY_FILES
from cuber.datasets.readers.image_files import csv_layouts, letter_layouts
from cuber.datasets.readers.layout import Layout, find_layouts
from cuber.datasets.registry import Source


def find_layout(source: Source, root: Path) -> Layout | None:
    """Return the layout of a dataset in a data directory with the fewest missing files, or None."""
    layouts = find_layouts(source, root, *ARRAY_FILES[source.name]) if source.name in ARRAY_FILES else []
    layouts += letter_layouts(source, root) if source.name == "notmnist" else []
    layouts += csv_layouts(source, root) if source.name == "miniimagenet" else []
    return min(layouts, key=lambda layout: len(layout.missing), default=None)
