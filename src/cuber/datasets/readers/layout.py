"""What every reader gives: the layouts of a set that it knows, and from each, blocks of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cuber.datasets.archives import BROKEN, why_broken
from cuber.datasets.source import DamagedError, Source
from cuber.errors import CuberError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Notes = list[str]
"""What a reader did that the user should know: files skipped, duplicates removed."""


@dataclass(frozen=True)
class Block:
    """Some images, (N, H, W) or (N, H, W, C), of one part of a set, and their labels."""

    part: str
    images: Images
    labels: Labels


@dataclass(frozen=True)
class Layout:
    """One way in which a set lies on disk: the files that are there, those that are not, and how to read them.

    Blocks come one by one, so that a set need not fit into memory twice.
    """

    title: str
    files: tuple[Path, ...]
    missing: tuple[Path, ...]
    read: Callable[[Notes], Iterator[Block]]


@contextmanager
def reading(source: Source, path: Path) -> Iterator[None]:
    """While open, whatever is wrong with a file becomes the sentence that names it."""
    try:
        yield
    except DamagedError as error:
        raise source.complaint(path, str(error)) from error
    except BROKEN as error:
        raise source.complaint(path, why_broken(error)) from error
    except OSError as error:
        raise CuberError(
            f"{source.name}: {path} cannot be read ({error.strerror or error}): make it readable and try again"
        ) from error


def block(source: Source, part: str, images: Images, labels: Sequence[int] | NDArray[np.generic]) -> Block:
    """A block, after a look at whether images and labels belong together and to this set."""
    numbers = np.asarray(labels)
    if images.dtype != np.uint8 or images.shape[1:] != source.shape:
        raise DamagedError(f"holds {images.dtype} images of shape {images.shape[1:]} instead of uint8 {source.shape}")
    if numbers.shape != (len(images),):
        raise DamagedError(f"does not belong to its labels: there are {len(images)} images and {numbers.size} labels")
    if len(numbers) and (numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= len(source.classes)):
        raise DamagedError(f"has labels that are not numbers from 0 to {len(source.classes) - 1}")
    return Block(part, images, numbers.astype(np.int64))
