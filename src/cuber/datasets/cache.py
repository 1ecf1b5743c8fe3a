"""Cache of decoded datasets as memory-mapped arrays.

A dataset is written to a temporary folder, which is renamed when it is complete. Two processes that start at once both
write; the second finds the folder and uses what the first has written.
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
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cuber.datasets.readers.layout import Block, Images, Labels, Layout, Notes
from cuber.errors import CuberWarning

VERSION = 1
"""Increased when readers decode the same files differently."""
FILES = tuple(f"{split}_{kind}.npy" for split in ("train", "test") for kind in ("images", "labels"))
CHUNK = 1024
MAX_AGE = 24 * 3600.0
"""Seconds after which an unfinished folder is removed."""


@dataclass(frozen=True)
class Arrays:
    """The arrays of a dataset and the notes of its reader."""

    notes: tuple[str, ...]
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


def load_cached(name: str, layout: Layout, root: Path) -> Arrays:
    """Load a dataset from the cache, after decoding it if necessary; without a writable cache, decode to memory.

    The cache is in ``CUBER_CACHE``, else in the data directory ``root``.
    """
    cache = Path(os.environ.get("CUBER_CACHE") or root / ".cuber")
    prefix, folder = _folder(name, layout, root, cache)
    arrays = _open(folder)
    if arrays is not None:
        return arrays
    try:
        _fill(folder, layout)
    except OSError as error:  # of the cache: readers raise CuberError for files that they cannot read
        warnings.warn(
            f"{name}: the decoded images cannot be kept in {cache} ({error.strerror}), so they are decoded at every "
            "start and held in memory; free some disk space, or name another folder with CUBER_CACHE",
            CuberWarning,
            stacklevel=3,
        )
        return _decode(layout)
    _remove_outdated(cache, prefix, folder)
    return _open(folder) or _decode(layout)


def _folder(name: str, layout: Layout, root: Path, cache: Path) -> tuple[str, Path]:
    """Return the prefix of all folders made from these paths, and the folder for the present state of the files."""
    origin = hashlib.sha256(f"{root.resolve()}\n{layout.title}".encode()).hexdigest()[:8]
    state = hashlib.sha256(f"{VERSION}\n".encode())
    for path in layout.files:
        status = path.stat()
        state.update(f"{path}\n{status.st_size} {status.st_mtime_ns}\n".encode())
    prefix = f"{name}-{origin}-"
    return prefix, cache / (prefix + state.hexdigest()[:16])


def _open(folder: Path) -> Arrays | None:
    """Map the arrays of a folder; None if it is missing or damaged."""
    try:
        notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
        arrays = [np.load(folder / file, mmap_mode="r" if "images" in file else None) for file in FILES]
    except (OSError, ValueError, EOFError):
        return None
    if any(len(images) != len(labels) for images, labels in (arrays[:2], arrays[2:])):
        return None
    return Arrays(tuple(notes), *arrays)


def _fill(folder: Path, layout: Layout) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.", suffix=".part"))
    try:
        notes: Notes = []
        _write(temporary, layout.read(notes))
        (temporary / "notes.json").write_text(json.dumps(notes), encoding="utf-8")
        temporary.chmod(0o755)
        try:
            temporary.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if _open(folder) is None:  # damaged, not written by another process
                shutil.rmtree(folder)
                temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, blocks: Iterable[Block]) -> None:
    """Append blocks to .npy files, whose headers are rewritten when the lengths are known."""
    lengths = dict.fromkeys(FILES, 0)
    empty: dict[str, np.ndarray] = {}
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in FILES}
        for block in blocks:
            for kind, array in (("images", block.images), ("labels", block.labels)):
                name = f"{block.split}_{kind}.npy"
                if name not in empty:
                    empty[name] = array[:0]
                    _write_header(files[name], empty[name], 0)
                for start in range(0, len(array), CHUNK):
                    files[name].write(np.ascontiguousarray(array[start : start + CHUNK]).data)
                lengths[name] += len(array)
        for name, file in files.items():
            file.seek(0)
            _write_header(file, empty[name], lengths[name])
            file.flush()
            os.fsync(file.fileno())  # before the folder is renamed, in case of a power failure


def _write_header(file: BinaryIO, like: np.ndarray, length: int) -> None:
    """Write a header; numpy pads it so that its size does not depend on the length."""
    header = {"descr": like.dtype.str, "fortran_order": False, "shape": (length, *like.shape[1:])}
    np.lib.format.write_array_header_1_0(file, header)


def _decode(layout: Layout) -> Arrays:
    """Decode to memory."""
    notes: Notes = []
    pieces: dict[str, list[np.ndarray]] = {file: [] for file in FILES}
    for block in layout.read(notes):
        pieces[f"{block.split}_images.npy"].append(np.ascontiguousarray(block.images))
        pieces[f"{block.split}_labels.npy"].append(block.labels)
    return Arrays(tuple(notes), *[np.concatenate(pieces.pop(file)) for file in FILES])


def _remove_outdated(cache: Path, prefix: str, folder: Path) -> None:
    """Remove the folders of earlier states of the same files, and old unfinished ones of killed processes."""
    for path in cache.glob(f"{prefix}*"):
        unfinished = path.suffix == ".part"
        if path != folder and (not unfinished or time.time() - path.stat().st_mtime > MAX_AGE):
            shutil.rmtree(path, ignore_errors=True)
