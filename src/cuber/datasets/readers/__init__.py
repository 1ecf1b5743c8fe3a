"""Readers of the official file formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cuber.datasets.readers import array_files, miniimagenet, notmnist
from cuber.datasets.readers.layout import Layout
from cuber.datasets.source import Source

READERS: dict[str, Callable[[Source, Path], list[Layout]]] = {
    "mnist": array_files.idx_layouts,
    "fashion-mnist": array_files.idx_layouts,
    "cifar-10": array_files.cifar_layouts,
    "cifar-100": array_files.cifar_layouts,
    "svhn": array_files.svhn_layouts,
    "notmnist": notmnist.layouts,
    "miniimagenet": miniimagenet.layouts,
}


def find_layout(source: Source, root: Path) -> Layout | None:
    """Return the layout of a dataset in a data directory with the fewest missing files, or None."""
    return min(READERS[source.name](source, root), key=lambda layout: len(layout.missing), default=None)
