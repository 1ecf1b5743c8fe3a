"""Layouts: the ways in which a dataset may be stored, each read as blocks of images."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cuber.datasets.registry import DamagedError, Source
from cuber.errors import CuberError

SPLITS = ("train", "test")
ARCHIVE_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)
"""Raised by the standard library for an archive that is truncated or not an archive."""
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Item = TypeVar("Item")
Notes = list[str]
"""Remarks of a reader: files skipped, duplicates removed."""


@dataclass(frozen=True)
class Block:
    """Some images, (N, H, W) or (N, H, W, C), and labels of a split, ``"train"`` or ``"test"``."""

    split: str
    images: Images
    labels: Labels


@dataclass(frozen=True)
class Layout:
    """One way in which a dataset is stored: its title, and the files that exist and that are missing.

    ``read`` appends to the notes and yields blocks, so that the dataset need not fit in memory.
    """

    title: str
    files: tuple[Path, ...]
    missing: tuple[Path, ...]
    read: Callable[[Notes], Iterator[Block]]


Reader = Callable[[Source, Sequence[Path], Notes], Iterator[Block]]


def find_layouts(source: Source, root: Path, title: str, names: Sequence[str], read: Reader) -> list[Layout]:
    """Return a layout for each folder of the dataset that has some of the named files; .gz files may be unpacked."""
    layouts = []
    for folder in source.folders:
        paths = [_unpacked(root / folder / name) for name in names]
        files = tuple(path for path in paths if path.exists())
        missing = tuple(path for path in paths if path not in files)
        if files:
            layouts.append(Layout(title, files, missing, partial(read, source, paths)))
    return layouts


def _unpacked(path: Path) -> Path:
    plain = path.with_suffix("")
    return plain if path.suffix == ".gz" and plain.exists() and not path.exists() else path


@contextmanager
def reading(source: Source, path: Path) -> Iterator[None]:
    """Convert errors in the context to a CuberError about the file."""
    try:
        yield
    except DamagedError as error:
        raise source.error(path, str(error)) from error
    except ARCHIVE_ERRORS as error:
        raise source.error(path, describe_damage(error)) from error
    except OSError as error:
        raise CuberError(
            f"{source.name}: {path} cannot be read ({error.strerror or error}): make it readable and try again"
        ) from error


def describe_damage(error: Exception) -> str:
    """Return the first line of an archive error; tarfile lists everything it tried in the others."""
    return f"is damaged ({(str(error).splitlines() or [type(error).__name__])[0].rstrip(':')})"


def block(source: Source, split: str, images: Images, labels: Sequence[int] | NDArray[np.generic]) -> Block:
    """Return a block; raise DamagedError if images and labels do not match each other or the dataset."""
    numbers = np.asarray(labels)
    if images.dtype != np.uint8 or images.shape[1:] != source.shape:
        raise DamagedError(f"holds {images.dtype} images of shape {images.shape[1:]} instead of uint8 {source.shape}")
    if numbers.shape != (len(images),):
        raise DamagedError(f"does not belong to its labels: there are {len(images)} images and {numbers.size} labels")
    if len(numbers) and (numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= len(source.classes)):
        raise DamagedError(f"has labels that are not numbers from 0 to {len(source.classes) - 1}")
    return Block(split, images, numbers.astype(np.int64))


def split_class(items: Sequence[Item]) -> dict[str, list[Item]]:
    """Split a class of miniImageNet, which has no official split: 5 of 6 images (500 of 600) are for training."""
    count = len(items) * 5 // 6
    return {"train": list(items[:count]), "test": list(items[count:])}
