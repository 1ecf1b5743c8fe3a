"""Load datasets, and report which are present and whether their files are intact."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cuber.datasets.cache import load_cached
from cuber.datasets.fetch import md5_of
from cuber.datasets.registry import SOURCES, find
from cuber.datasets.source import Images, Labels, Layout, Location, Source
from cuber.errors import CuberError, needs_extra

PRESENT, INCOMPLETE, MISSING = "present", "incomplete", "missing"
OK, MISMATCH, UNKNOWN = "ok", "differs", "no checksum"
OFFICIAL_SIZE = "images where the official set has"
"""Part of the note on a dataset with another number of images, by which results are told apart."""


@dataclass(frozen=True, repr=False)
class ImageDataset:
    """Images as uint8 arrays (N, H, W) or (N, H, W, C), usually memory-mapped, with labels and class names.

    ``mean`` and ``std`` are those of each channel, for pixels in [0, 1]. ``notes`` lists differences from the official
    dataset: damaged files, duplicates, a subset.
    """

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notes: tuple[str, ...] = ()

    def padded_normalization(self, padding: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation of images with ``padding`` black pixels on each side."""
        height, width = self.train_images.shape[1:3]
        share = height * width / ((height + 2 * padding) * (width + 2 * padding))
        mean = tuple(share * m for m in self.mean)
        squares = (share * (s * s + m * m) for m, s in zip(self.mean, self.std, strict=True))
        return mean, tuple((square - m * m) ** 0.5 for square, m in zip(squares, mean, strict=True))

    def renumbered(self, classes: tuple[str, ...]) -> ImageDataset:
        """Return the dataset with the same classes in another order."""
        numbers = np.array([classes.index(name) for name in self.classes])
        train, test = numbers[self.train_labels], numbers[self.test_labels]
        return dataclasses.replace(self, classes=classes, train_labels=train, test_labels=test)

    def __repr__(self) -> str:
        counts = f"{len(self.train_images):,} train, {len(self.test_images):,} test"
        notes = "".join(f"; {note}" for note in self.notes)
        return f"<{self.name}: {counts}, {len(self.classes)} classes, {self.train_images.shape[1:]}{notes}>"


@dataclass(frozen=True)
class Status:
    """State of a dataset in the data directory.

    ``places`` are the folders that are searched, or the one where it was found; ``size`` is in bytes.
    """

    source: Source
    state: str
    places: tuple[Path, ...]
    layout: str = ""
    missing: tuple[Path, ...] = ()
    size: int = 0


@dataclass(frozen=True)
class FileCheck:
    """Result of comparing a file with its official md5.

    ``state`` is "ok", "differs", "no checksum" or "missing".
    """

    path: Path
    state: str
    expected: str | None = None
    actual: str | None = None


def directory(data_dir: Location | None = None) -> Path:
    """Return the data directory: the argument, else ``CUBER_DATA``, else the user's cache directory."""
    if data_dir or os.environ.get("CUBER_DATA"):
        return Path(data_dir or os.environ["CUBER_DATA"]).expanduser()
    with needs_extra("data", "the user's cache directory"):
        import platformdirs

    return Path(platformdirs.user_cache_dir("cuber", appauthor=False))


def load(name: str, data_dir: Location | None = None) -> ImageDataset:
    """Load a dataset; it is decoded once and memory-mapped from the cache afterwards.

    >>> load("cifar-100").train_images.shape  # doctest: +SKIP
    (50000, 32, 32, 3)
    """
    source, root = find(name, data_dir), directory(data_dir)
    layout = _require_layout(source, root)
    if layout.missing:
        more = f" and {len(layout.missing) - 1} more" if len(layout.missing) > 1 else ""
        raise source.error(layout.missing[0], f"is missing{more}")
    arrays, notes = load_cached(name, layout, root)
    for split, kind, official in (("train", "training", source.train), ("test", "test", source.test)):
        count = len(arrays[f"{split}_labels"])
        if count != official:
            notes = (*notes, f"{count:,} {kind} {OFFICIAL_SIZE} {official:,}")
    return ImageDataset(name, **arrays, classes=source.classes, mean=source.mean, std=source.std, notes=notes)


def status(name: str, data_dir: Location | None = None) -> Status:
    """Return whether a dataset is present, incomplete or missing, and where."""
    source, root = find(name, data_dir), directory(data_dir)
    layout = source.find_layout(root)
    if layout is None:
        return Status(source, MISSING, tuple(root / folder for folder in source.folders))
    size = sum(path.stat().st_size for path in layout.files)
    state = INCOMPLETE if layout.missing else PRESENT
    place = Path(os.path.commonpath([path.parent for path in layout.files]))
    return Status(source, state, (place,), layout.title, layout.missing, size)


def statuses(data_dir: Location | None = None) -> list[Status]:
    """Return the status of every dataset."""
    return [status(name, data_dir) for name in SOURCES]


def check(name: str, data_dir: Location | None = None) -> Iterator[FileCheck]:
    """Compare each file of a dataset with its official checksum; single images have none."""
    source, root = find(name, data_dir), directory(data_dir)
    layout = _require_layout(source, root)
    for path in layout.missing:
        yield FileCheck(path, MISSING, source.md5(path.name))
    for path in layout.files:
        expected = source.md5(path.name)
        actual = md5_of(path) if expected else None
        yield FileCheck(path, UNKNOWN if expected is None else OK if actual == expected else MISMATCH, expected, actual)


def is_intact(name: str, data_dir: Location | None = None) -> bool:
    """Return whether a dataset is present and none of its files has a checksum mismatch."""
    is_present = status(name, data_dir).state == PRESENT
    return is_present and all(result.state != MISMATCH for result in check(name, data_dir))


def _require_layout(source: Source, root: Path) -> Layout:
    layout = source.find_layout(root)
    if layout is not None:
        return layout
    if source.downloads:
        raise source.error(root / source.downloads[0].path, f"is missing (searched {root})")
    raise CuberError(f"{source.name} is not in {root}: {source.how_to_get}, and put it at {root / source.folders[0]}")
