"""Layouts: the ways in which a dataset may be stored, each read as blocks of images."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cuber.datasets.source import DamagedError, Source
from cuber.errors import CuberError

SPLITS = ("train", "test")
ARCHIVE_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)
"""Raised by the standard library for an archive that is truncated or not an archive."""
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
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

    @classmethod
    def find(cls, title: str, paths: Sequence[Path], read: Callable[[Notes], Iterator[Block]]) -> list[Layout]:
        """Return the layout that consists of ``paths``, or nothing if none of them exists."""
        files = tuple(path for path in paths if path.exists())
        missing = tuple(path for path in paths if path not in files)
        return [cls(title, files, missing, read)] if files else []


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
    return f"is damaged or cut off ({(str(error).splitlines() or [type(error).__name__])[0].rstrip(':')})"


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
