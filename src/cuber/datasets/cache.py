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
from pathlib import Path
from typing import Any

import numpy as np

from cuber.datasets.source import SPLITS, Layout, Notes
from cuber.errors import CuberWarning

VERSION = 2
"""Increased when readers decode the same files differently, or write the cache differently."""
FILES = ("train_images", "train_labels", "test_images", "test_labels")
CONTENTS = "contents.json"
"""File with the notes of the reader and the shapes of the images."""
MAX_AGE = 24 * 3600.0
"""Seconds after which an unfinished folder is removed."""
Arrays = tuple[dict[str, np.ndarray], tuple[str, ...]]
"""The arrays by the names of their files, and the notes of the reader."""


def load_cached(name: str, layout: Layout, root: Path) -> Arrays:
    """Load a dataset from the cache, after decoding it if necessary; without a writable cache, decode to memory.

    The cache is in ``CUBER_CACHE``, else in the data directory ``root``.
    """
    cache = Path(os.environ.get("CUBER_CACHE") or root / ".cuber")
    origin = hashlib.sha256(f"{root.resolve()}\n{layout.title}".encode()).hexdigest()[:8]
    state = hashlib.sha256(f"{VERSION}\n".encode())
    for path in layout.files:
        status = path.stat()
        state.update(f"{path}\n{status.st_size} {status.st_mtime_ns}\n".encode())
    folder = cache / f"{name}-{origin}-{state.hexdigest()[:16]}"
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
    for path in cache.glob(f"{name}-{origin}-*"):  # made from earlier states of the same files, or by a killed process
        if path != folder and (path.suffix != ".part" or time.time() - path.stat().st_mtime > MAX_AGE):
            shutil.rmtree(path, ignore_errors=True)
    return _open(folder) or _decode(layout)


def _open(folder: Path) -> Arrays | None:
    """Map the images of a folder and read the rest; None if it is missing or damaged."""
    arrays: dict[str, np.ndarray] = {}
    try:
        contents = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
        for split in SPLITS:
            shape = tuple(contents[split])
            arrays[f"{split}_images"] = np.memmap(folder / f"{split}_images", np.uint8, "r", shape=shape)
            arrays[f"{split}_labels"] = np.fromfile(folder / f"{split}_labels", np.int64)
            if len(arrays[f"{split}_labels"]) != shape[0]:
                return None
        return arrays, tuple(contents["notes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _fill(folder: Path, layout: Layout) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.", suffix=".part"))
    try:
        _write(temporary, layout)
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


def _write(folder: Path, layout: Layout) -> None:
    """Append blocks to the files, and write the contents when the lengths are known."""
    notes: Notes = []
    contents: dict[str, Any] = {"notes": notes}
    for block in layout.read(notes):
        for kind, array in (("images", block.images), ("labels", block.labels)):
            with (folder / f"{block.split}_{kind}").open("ab") as file:
                file.write(np.ascontiguousarray(array).data)
        before = contents.get(block.split, [0])[0]
        contents[block.split] = [before + len(block.images), *block.images.shape[1:]]
    (folder / CONTENTS).write_text(json.dumps(contents), encoding="utf-8")
    for path in folder.iterdir():
        with path.open("ab") as file:
            os.fsync(file.fileno())  # before the folder is renamed, in case of a power failure


def _decode(layout: Layout) -> Arrays:
    """Decode to memory."""
    notes: Notes = []
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in FILES}
    for block in layout.read(notes):
        pieces[f"{block.split}_images"].append(np.ascontiguousarray(block.images))
        pieces[f"{block.split}_labels"].append(block.labels)
    return {name: np.concatenate(pieces.pop(name)) for name in FILES}, tuple(notes)
