"""Decoded sets on disk, as arrays that are mapped into memory rather than read.

A set is written into a folder of its own, which gets its name when it is whole: whoever finds the name finds all of it.
Two processes that start at once both write; the second finds the name taken and uses what the first has written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cuber.datasets.readers.layout import Block, Images, Labels, Layout, Notes
from cuber.errors import CuberWarning

VERSION = 1
"""Counts up when readers change what they make of the same files."""
PARTS = ("train", "test")
FILES = tuple(f"{part}_{kind}.npy" for part in PARTS for kind in ("images", "labels"))
CHUNK = 1024
FORGOTTEN_AFTER = 24 * 3600.0
"""Seconds after which a half-written folder belongs to nobody any more."""


@dataclass(frozen=True)
class Decoded:
    """The arrays of a set, and what its reader had to say."""

    notes: tuple[str, ...]
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


class _CannotWriteError(Exception):
    """The cache, not the data, is the trouble."""


def decoded(name: str, layout: Layout, root: Path) -> Decoded:
    """A set from the cache, which is filled first where that is needed and possible."""
    cache = cache_directory(root)
    prefix, folder = _place(name, layout, root, cache)
    kept = _open(folder)
    if kept is not None:
        return kept
    try:
        _fill(folder, layout.read)
    except _CannotWriteError as error:
        warnings.warn(
            f"{name}: the decoded images cannot be kept in {cache} ({error}), so they are decoded at every start and "
            "held in memory; make room there, or name another folder with CUBER_CACHE",
            CuberWarning,
            stacklevel=3,
        )
        return _in_memory(layout.read)
    _forget(cache, prefix, folder)
    return _open(folder) or _in_memory(layout.read)


def cache_directory(root: Path) -> Path:
    """Where decoded sets are kept: ``CUBER_CACHE``, else a folder in the data directory."""
    return Path(os.environ.get("CUBER_CACHE") or root / ".cuber")


def _place(name: str, layout: Layout, root: Path, cache: Path) -> tuple[str, Path]:
    """The folder of a set, named after what it was made from, and how all folders of the same origin begin."""
    origin = hashlib.sha256(f"{root.resolve()}\n{layout.title}".encode()).hexdigest()[:8]
    state = hashlib.sha256(f"{VERSION}\n".encode())
    for path in layout.files:
        status = path.stat()
        state.update(f"{path}\n{status.st_size} {status.st_mtime_ns}\n".encode())
    prefix = f"{name}-{origin}-"
    return prefix, cache / (prefix + state.hexdigest()[:16])


def _open(folder: Path) -> Decoded | None:
    """What a folder of the cache holds; None where it holds nothing that can be used."""
    try:
        notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
        arrays = [np.load(folder / file, mmap_mode="r" if "images" in file else None) for file in FILES]
    except (OSError, ValueError, EOFError):
        return None
    if any(len(images) != len(labels) for images, labels in (arrays[:2], arrays[2:])):
        return None
    return Decoded(tuple(notes), *arrays)


def _fill(folder: Path, read: Callable[[Notes], Iterator[Block]]) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.", suffix=".part"))
    except OSError as error:
        raise _CannotWriteError(error.strerror) from error
    try:
        notes: Notes = []
        _write(temporary, read(notes))
        try:
            (temporary / "notes.json").write_text(json.dumps(notes), encoding="utf-8")
            temporary.chmod(0o755)
            _rename(temporary, folder)
        except OSError as error:
            raise _CannotWriteError(error.strerror) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _rename(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if _open(folder) is None:  # not another process's, but a broken one: somebody has deleted half of it
            shutil.rmtree(folder)
            temporary.rename(folder)


def _write(folder: Path, blocks: Iterable[Block]) -> None:
    with ExitStack() as stack:
        files = {file: stack.enter_context(_Growing(folder / file)) for file in FILES}
        for block in blocks:
            for start in range(0, len(block.images), CHUNK):
                files[f"{block.part}_images.npy"].append(block.images[start : start + CHUNK])
            files[f"{block.part}_labels.npy"].append(block.labels)


class _Growing:
    """A .npy file whose length is known only in the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO | None = None
        self.length = 0
        self.like: np.ndarray = np.empty(0)

    def __enter__(self) -> _Growing:
        return self

    def append(self, array: np.ndarray) -> None:
        try:
            if self.file is None:
                self.file = self.path.open("wb")
                self.like = array[:0]
                self._header()
            self.file.write(np.ascontiguousarray(array).data)
        except OSError as error:
            raise _CannotWriteError(error.strerror) from error
        self.length += len(array)

    def __exit__(self, kind: Any, *_: object) -> None:
        if self.file is None:
            return
        try:
            with self.file:
                if kind is None:
                    self.file.seek(0)
                    self._header()
                    self.file.flush()
                    os.fsync(self.file.fileno())  # the name must not outlive a power cut that the content does not
        except OSError as error:
            if kind is None:
                raise _CannotWriteError(error.strerror) from error

    def _header(self) -> None:
        """numpy leaves room for the first dimension to grow, so that the header keeps its size."""
        assert self.file is not None
        header = {"descr": self.like.dtype.str, "fortran_order": False, "shape": (self.length, *self.like.shape[1:])}
        np.lib.format.write_array_header_1_0(self.file, header)


def _in_memory(read: Callable[[Notes], Iterator[Block]]) -> Decoded:
    notes: Notes = []
    pieces: dict[str, list[np.ndarray]] = {file: [] for file in FILES}
    for block in read(notes):
        pieces[f"{block.part}_images.npy"].append(np.ascontiguousarray(block.images))
        pieces[f"{block.part}_labels.npy"].append(block.labels)
    return Decoded(tuple(notes), *[_join(pieces.pop(file)) for file in FILES])


def _join(pieces: list[np.ndarray]) -> np.ndarray:
    """Concatenation that lets go of each piece once it is copied."""
    whole = np.empty((sum(map(len, pieces)), *pieces[0].shape[1:]), pieces[0].dtype)
    end = len(whole)
    while pieces:
        piece = pieces.pop()
        whole[end - len(piece) : end] = piece
        end -= len(piece)
    return whole


def _forget(cache: Path, prefix: str, folder: Path) -> None:
    """Remove what an earlier state of the same files left, and what killed processes left half-written."""
    for path in cache.glob(f"{prefix}*"):
        unfinished = path.suffix == ".part"
        if path != folder and (not unfinished or time.time() - path.stat().st_mtime > FORGOTTEN_AFTER):
            shutil.rmtree(path, ignore_errors=True)
