"""The door of this room: which sets are there, are they right, and their images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuber.datasets import cache
from cuber.datasets.fetch import md5_of
from cuber.datasets.readers import find_layout
from cuber.datasets.readers.layout import Images, Labels
from cuber.datasets.source import Source
from cuber.datasets.sources import SOURCES, find
from cuber.errors import CuberError

PRESENT, INCOMPLETE, MISSING = "present", "incomplete", "missing"
RIGHT, WRONG, UNKNOWN = "right", "wrong", "unknown"
OFFICIAL_SIZE = "images where the official set has"
"""In the note about a set with another number of images, and in no other: results are told apart by it."""


@dataclass(frozen=True, repr=False)
class Dataset:
    """The images of a set as bytes, (N, H, W) or (N, H, W, C), usually mapped from disk, and what belongs to them."""

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """Of each channel, for pixels in [0, 1]."""
    std: tuple[float, ...]
    notes: tuple[str, ...] = ()
    """What differs from the official set: damaged files, duplicates, a subset."""

    def padded_normalization(self, padding: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation after ``padding`` black pixels were put around every image."""
        height, width = self.train_images.shape[1:3]
        share = height * width / ((height + 2 * padding) * (width + 2 * padding))
        mean = tuple(share * m for m in self.mean)
        squares = (share * (s * s + m * m) for m, s in zip(self.mean, self.std, strict=True))
        return mean, tuple((square - m * m) ** 0.5 for square, m in zip(squares, mean, strict=True))

    def __repr__(self) -> str:
        counts = f"{len(self.train_images):,} train, {len(self.test_images):,} test"
        notes = "".join(f"; {note}" for note in self.notes)
        return f"<{self.name}: {counts}, {len(self.classes)} classes, {self.train_images.shape[1:]}{notes}>"


@dataclass(frozen=True)
class Status:
    """What there is of a set on this machine."""

    source: Source
    state: str
    places: tuple[Path, ...]
    """Where it is looked for, in this order; where it is, once found."""
    layout: str = ""
    missing: tuple[Path, ...] = ()
    size: int = 0
    """Bytes of the files found."""


@dataclass(frozen=True)
class Verdict:
    """One file, and whether it is missing or its checksum right, wrong, or unknown to everybody."""

    path: Path
    state: str
    expected: str | None = None
    actual: str | None = None


def directory(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The data directory: the argument, else ``CUBER_DATA``, else the user's cache directory."""
    if data_dir or os.environ.get("CUBER_DATA"):
        return Path(data_dir or os.environ["CUBER_DATA"]).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("cuber", appauthor=False))


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """The images of a set, decoded at the first call and mapped from the cache afterwards.

    >>> load("cifar-100").train_images.shape  # doctest: +SKIP
    (50000, 32, 32, 3)
    """
    source, root = find(name, data_dir), directory(data_dir)
    layout = find_layout(source, root)
    if layout is None:
        raise _absent(source, root)
    if layout.missing:
        more = f" and {len(layout.missing) - 1} more" if len(layout.missing) > 1 else ""
        raise source.complaint(layout.missing[0], f"is missing{more}")
    sets = cache.decoded(name, layout, root)
    return Dataset(
        name,
        sets.train_images,
        sets.train_labels,
        sets.test_images,
        sets.test_labels,
        source.classes,
        source.mean,
        source.std,
        (*sets.notes, *_differences(source, sets)),
    )


def status(name: str, data_dir: str | os.PathLike[str] | None = None) -> Status:
    """Whether a set is present, incomplete or missing, and where."""
    source, root = find(name, data_dir), directory(data_dir)
    layout = find_layout(source, root)
    if layout is None:
        return Status(source, MISSING, tuple(root / folder for folder in source.folders))
    size = sum(path.stat().st_size for path in layout.files)
    state = INCOMPLETE if layout.missing else PRESENT
    return Status(source, state, (_common(layout.files),), layout.title, layout.missing, size)


def statuses(data_dir: str | os.PathLike[str] | None = None) -> list[Status]:
    """The status of every set."""
    return [status(name, data_dir) for name in SOURCES]


def check(name: str, data_dir: str | os.PathLike[str] | None = None) -> Iterator[Verdict]:
    """The checksum of every file of a set, one after another; single images have none."""
    source, root = find(name, data_dir), directory(data_dir)
    layout = find_layout(source, root)
    if layout is None:
        raise _absent(source, root)
    for path in layout.missing:
        yield Verdict(path, MISSING, source.md5(path.name))
    for path in layout.files:
        expected = source.md5(path.name)
        actual = md5_of(path) if expected else None
        yield Verdict(path, UNKNOWN if expected is None else RIGHT if actual == expected else WRONG, expected, actual)


def is_whole(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether a set is present and no file of it has a wrong checksum."""
    if status(name, data_dir).state != PRESENT:
        return False
    return all(verdict.state != WRONG for verdict in check(name, data_dir))


def _absent(source: Source, root: Path) -> CuberError:
    if source.downloads:
        file = source.downloads[0]
        return source.complaint(root / file.path, f"is missing (looked for {source.title} in {root})")
    return CuberError(f"{source.name} is not in {root}: {source.how_to_get}, and put it at {root / source.folders[0]}")


def _differences(source: Source, sets: cache.Decoded) -> Iterator[str]:
    for part, images, official in (
        ("training", sets.train_images, source.train),
        ("test", sets.test_images, source.test),
    ):
        if len(images) != official:
            yield f"{len(images):,} {part} {OFFICIAL_SIZE} {official:,}"


def _common(files: tuple[Path, ...]) -> Path:
    return Path(os.path.commonpath([path.parent for path in files]))
