"""The MATLAB files of SVHN's cropped digits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from cuber.datasets.readers.layout import SPLITS, Block, Layout, Notes, block, reading
from cuber.datasets.source import DamagedError, Source


def layouts(source: Source, root: Path) -> list[Layout]:
    """Return a layout for each folder that has one of the two files."""
    found = []
    for folder in (root / name for name in source.folders):
        paths = [folder / f"{split}_32x32.mat" for split in SPLITS]
        found += Layout.find("MATLAB files", paths, partial(_read, source, paths))
    return found


def _read(source: Source, paths: list[Path], notes: Notes) -> Iterator[Block]:
    for split, path in zip(SPLITS, paths, strict=True):
        with reading(source, path):
            whole = _read_mat(source, split, path)
        yield whole


def _read_mat(source: Source, split: str, path: Path) -> Block:
    """Read a MATLAB file, in which the digit 0 has the label 10."""
    from scipy.io import loadmat  # imported here because it is slow and a filled cache does not need it

    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # scipy raises unrelated types for damaged files
        if isinstance(error, OSError) and error.errno is not None:
            raise  # from the operating system, not from scipy
        raise DamagedError(f"is cut off or no MATLAB file ({error})") from error
    if "X" not in content or "y" not in content:
        raise DamagedError("is a MATLAB file, but without the images X and the labels y of SVHN")
    images, labels = content["X"], content["y"].reshape(-1)
    if images.ndim != 4:
        raise DamagedError(f"holds images of shape {images.shape} instead of (32, 32, 3, N)")
    return block(source, split, images.transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels))
