"""Datasets as they are described and stored: sources, layouts of their files, and errors about them."""

from __future__ import annotations

import gzip
import os
import shlex
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cuber.errors import CuberError

SPLITS = ("train", "test")
ARCHIVE_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)
"""Raised by the standard library for an archive that is truncated or not an archive."""
Location = str | os.PathLike[str]
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Notes = list[str]
"""Remarks of a reader: files skipped, duplicates removed."""


class DamagedError(Exception):
    """A file has wrong content; the message is the rest of a sentence that starts with its name."""


def describe_damage(error: Exception) -> str:
    """Return the first line of an archive error; tarfile lists everything it tried in the others."""
    return f"is damaged or cut off ({(str(error).splitlines() or [type(error).__name__])[0].rstrip(':')})"


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
    def of_files(cls, title: str, paths: Sequence[Path], read: Callable[[Notes], Iterator[Block]]) -> Layout:
        """Return the layout that consists of ``paths``."""
        files = tuple(path for path in paths if path.exists())
        return cls(title, files, tuple(path for path in paths if path not in files), read)


@dataclass(frozen=True)
class Download:
    """A file to download from the first of ``urls`` that has it to ``path``, below the data directory.

    An archive is unpacked to the folder ``unpacks_to`` beside it.
    """

    path: str
    urls: tuple[str, ...]
    size: int
    md5: str
    unpacks_to: str | None = None

    @property
    def name(self) -> str:
        return Path(self.path).name


@dataclass(frozen=True)
class Source:
    """Description of a dataset.

    ``train`` and ``test`` are the numbers of images of the official dataset, ``mean`` and ``std`` those of each channel
    for pixels in [0, 1], as in the benchmarks' protocols. ``folders`` are searched below the data directory, for the
    ``layouts`` that may be in a folder; the first is the download target. ``contents`` has the md5 of unpacked files.
    ``how_to_get`` is the advice for a dataset that cannot be downloaded, and ``data_dir`` the data directory to name in
    advice, if the user has given one.
    """

    name: str
    license: str
    citation: str
    classes: tuple[str, ...]
    train: int
    test: int
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    folders: tuple[str, ...]
    layouts: Callable[[Source, Path], Iterable[Layout]]
    downloads: tuple[Download, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
    how_to_get: str = ""
    data_dir: str | None = None

    @property
    def size(self) -> int:
        """Number of bytes to download."""
        return sum(download.size for download in self.downloads)

    @property
    def command(self) -> str:
        """Command that downloads the dataset."""
        where = f" --data-dir {shlex.quote(self.data_dir)}" if self.data_dir else ""
        return f"cuber data get {self.name}{where}"

    def find_layout(self, root: Path) -> Layout | None:
        """Return the layout in a data directory with the fewest missing files, or None."""
        found = (layout for folder in self.folders for layout in self.layouts(self, root / folder) if layout.files)
        return min(found, key=lambda layout: len(layout.missing), default=None)

    def md5(self, filename: str) -> str | None:
        """Return the official md5 of a file, or None if none was published."""
        return {**self.contents, **{download.name: download.md5 for download in self.downloads}}.get(filename)

    def error(self, path: Path, what: str) -> CuberError:
        """Return the error for a file that is missing or damaged, with its checksum and how to get it."""
        md5 = self.md5(path.name)
        checksum = f"its md5 is {md5}" if md5 else "no official checksum of it is known"
        how = self.how_to_get + ","
        if self.downloads:
            same = [file for file in self.downloads if file.name.removesuffix(".gz") == path.name.removesuffix(".gz")]
            file = (same or self.downloads)[0]
            verb = "download" if file.name == path.name else "download and unpack"
            how = f"run '{self.command}', or {verb} {file.urls[0]}"
        return CuberError(f"{self.name}: {path} {what}; {checksum}; {how} and put it at {path}")

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Convert errors in the context to a CuberError about the file."""
        try:
            yield
        except DamagedError as error:
            raise self.error(path, str(error)) from error
        except ARCHIVE_ERRORS as error:
            raise self.error(path, describe_damage(error)) from error
        except OSError as error:
            raise cannot_read(self.name, path, error) from error

    def block(self, split: str, images: Images, labels: NDArray[np.generic]) -> Block:
        """Return a block; raise DamagedError if images and labels do not match each other or the dataset."""
        if images.dtype != np.uint8 or images.shape[1:] != self.shape:
            raise DamagedError(f"holds {images.dtype} images of shape {images.shape[1:]} instead of uint8 {self.shape}")
        if labels.shape != (len(images),):
            raise DamagedError(f"does not match its labels: there are {len(images)} images and {labels.size} labels")
        if len(labels) and (labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(self.classes)):
            raise DamagedError(f"has labels that are not numbers from 0 to {len(self.classes) - 1}")
        return Block(split, images, labels.astype(np.int64))


def cannot_read(name: str, path: Path, error: OSError) -> CuberError:
    """Return the error for a file that the operating system does not let us read."""
    return CuberError(f"{name}: {path} cannot be read ({error.strerror or error}): make it readable and try again")
