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
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cuber.datasets.readers.layout import SPLITS, Images, Labels, Layout, Notes
from cuber.errors import CuberWarning

VERSION = 2
"""Increased when readers decode the same files differently, or the cache has other files."""
FILES = tuple(f"{split}_{kind}" for split in SPLITS for kind in ("images", "labels"))
"""Arrays without a header: uint8 images and int64 labels; ``index.json`` has the shape of an image and the notes."""
MAX_AGE = 24 * 3600.0
"""Seconds after which an unfinished folder is removed."""


class Arrays(NamedTuple):
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
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        arrays: list[np.ndarray] = []
        for split in SPLITS:
            images = np.memmap(folder / f"{split}_images", np.uint8, "r").reshape(-1, *index["shape"])
            arrays += [images, np.fromfile(folder / f"{split}_labels", np.int64)]
    except (OSError, ValueError):
        return None
    whole = all(len(images) == len(labels) for images, labels in (arrays[:2], arrays[2:]))
    return Arrays(tuple(index["notes"]), *arrays) if whole else None


def _fill(folder: Path, layout: Layout) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.", suffix=".part"))
    try:
        _write(temporary, layout)
        temporary.chmod(0o755)
        if _open(folder) is None:  # missing or damaged, not written by another process
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, layout: Layout) -> None:
    notes: Notes = []
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in FILES}
        for block in layout.read(notes):
            files[f"{block.split}_images"].write(np.ascontiguousarray(block.images).data)
            files[f"{block.split}_labels"].write(block.labels.data)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())  # before the folder is renamed, in case of a power failure
    index = {"shape": block.images.shape[1:], "notes": notes}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")


def _decode(layout: Layout) -> Arrays:
    """Decode to memory."""
    notes: Notes = []
    pieces: dict[str, list[np.ndarray]] = {file: [] for file in FILES}
    for block in layout.read(notes):
        pieces[f"{block.split}_images"].append(np.ascontiguousarray(block.images))
        pieces[f"{block.split}_labels"].append(block.labels)
    return Arrays(tuple(notes), *[np.concatenate(pieces.pop(file)) for file in FILES])


def _remove_outdated(cache: Path, prefix: str, folder: Path) -> None:
    """Remove the folders of earlier states of the same files, and old unfinished ones of killed processes."""
    for path in cache.glob(f"{prefix}*"):
        unfinished = path.suffix == ".part"
        if path != folder and (not unfinished or time.time() - path.stat().st_mtime > MAX_AGE):
            shutil.rmtree(path, ignore_errors=True)
