"""Readers, one module per file format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cuber.datasets.readers import cifar, idx, miniimagenet, notmnist, svhn
from cuber.datasets.readers.layout import Layout
from cuber.datasets.source import Source

READERS: dict[str, Callable[[Source, Path], list[Layout]]] = {
    "mnist": idx.layouts,
    "fashion-mnist": idx.layouts,
    "cifar-10": cifar.layouts,
    "cifar-100": cifar.layouts,
    "svhn": svhn.layouts,
    "notmnist": notmnist.layouts,
    "miniimagenet": miniimagenet.layouts,
}


def find_layout(source: Source, root: Path) -> Layout | None:
    """Return the layout of a dataset in a data directory with the fewest missing files, or None."""
    return min(READERS[source.name](source, root), key=lambda layout: len(layout.missing), default=None)
