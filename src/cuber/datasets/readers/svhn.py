"""SVHN's cropped digits: two MATLAB files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from cuber.datasets.readers.layout import Block, Layout, Notes, block, reading
from cuber.datasets.source import DamagedError, Source

PARTS = ("train", "test")


def layouts(source: Source, root: Path) -> list[Layout]:
    """Every folder that holds one of the two files."""
    found = []
    for folder in (root / name for name in source.folders):
        paths = [folder / f"{part}_32x32.mat" for part in PARTS]
        files = tuple(path for path in paths if path.exists())
        missing = tuple(path for path in paths if not path.exists())
        if files:
            found.append(Layout("MATLAB files", files, missing, partial(_read, source, folder)))
    return found


def read_mat(source: Source, part: str, path: Path) -> Block:
    """The images and labels of one MATLAB file, which numbers the digit 0 as 10."""
    from scipy.io import loadmat  # here, because a warm cache does without its long import

    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # scipy answers damaged files with whatever its parser stumbled over
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's, not scipy's
        raise DamagedError(f"is cut off or no MATLAB file ({error})") from error
    if "X" not in content or "y" not in content:
        raise DamagedError("is a MATLAB file, but without the images X and the labels y of SVHN")
    images, labels = content["X"], content["y"].reshape(-1)
    if images.ndim != 4:
        raise DamagedError(f"holds images of shape {images.shape} instead of (32, 32, 3, N)")
    return block(source, part, images.transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels))


def _read(source: Source, folder: Path, notes: Notes) -> Iterator[Block]:
    for part in PARTS:
        path = folder / f"{part}_32x32.mat"
        with reading(source, path):
            whole = read_mat(source, part, path)
        yield whole
