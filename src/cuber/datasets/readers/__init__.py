"""Readers of the official file formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cuber.datasets.readers import array_files, image_files
from cuber.datasets.readers.layout import Layout
from cuber.datasets.source import Source

READERS: dict[str, tuple[Callable[[Source, Path], list[Layout]], ...]] = {
    "mnist": (array_files.idx_layouts,),
    "fashion-mnist": (array_files.idx_layouts,),
    "cifar-10": (array_files.cifar_layouts,),
    "cifar-100": (array_files.cifar_layouts,),
    "svhn": (array_files.svhn_layouts,),
    "notmnist": (image_files.letter_layouts,),
    "miniimagenet": (array_files.pickle_layouts, image_files.csv_layouts),
}


def find_layout(source: Source, root: Path) -> Layout | None:
    """Return the layout of a dataset in a data directory with the fewest missing files, or None."""
    layouts = [layout for find in READERS[source.name] for layout in find(source, root)]
    return min(layouts, key=lambda layout: len(layout.missing), default=None)
