"""One file per format: each finds the layouts it knows and reads them block by block."""

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
    """The first complete layout of a set below a data directory, else the one that lacks least, else None."""
    return min(READERS[source.name](source, root), key=lambda layout: len(layout.missing), default=None)
