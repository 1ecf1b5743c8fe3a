"""The idx format of MNIST and Fashion-MNIST, compressed or not."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from cuber.datasets.readers.layout import SPLITS, Block, Images, Layout, Notes, block, reading
from cuber.datasets.source import DamagedError, Source

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
UNSIGNED_BYTE = 0x08
CHUNK = 1 << 20  # gzip allocates as much as it is asked for


def layouts(source: Source, root: Path) -> list[Layout]:
    """Return a layout for each folder that has some of the four files."""
    found = []
    for folder in (root / name for name in source.folders):
        paths = [_find(folder, name) for name in NAMES]
        found += Layout.find("idx files", paths, partial(_read, source, paths))
    return found


def read_idx(path: Path, dimensions: int) -> Images:
    """Read the uint8 array of an idx file."""
    with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
        header = file.read(4 + 4 * dimensions)
        if len(header) < 4 + 4 * dimensions:
            raise DamagedError("is cut off within its header")
        if header[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
            raise DamagedError(f"is no idx file of {dimensions} dimensions: it begins with {header[:4].hex()}")
        shape = struct.unpack(f">{dimensions}I", header[4:])
        if math.prod(shape) > np.iinfo(np.int32).max:
            raise DamagedError(f"is damaged: its header promises {shape}")
        array = np.empty(shape, np.uint8)
        rest = memoryview(array.reshape(-1).data)
        while rest and (count := file.readinto(rest[:CHUNK])):  # type: ignore[attr-defined]
            rest = rest[count:]
        if rest:
            raise DamagedError(f"is cut off: {len(rest)} of {array.size} bytes are missing")
        if file.read(1):
            raise DamagedError(f"is longer than the {shape} its header promises")
    return array


def _find(folder: Path, name: str) -> Path:
    """Return the path of the file under any of its names; the downloaded one first, to take precedence."""
    old = name.replace("-idx", ".idx")
    paths = [folder / f"{name}.gz", folder / name, folder / f"{old}.gz", folder / old]
    return next((path for path in paths if path.exists()), paths[0])


def _read(source: Source, paths: list[Path], notes: Notes) -> Iterator[Block]:
    for split, images_path, labels_path in zip(SPLITS, paths[::2], paths[1::2], strict=True):
        with reading(source, images_path):
            images = read_idx(images_path, 3)
        with reading(source, labels_path):
            labels = read_idx(labels_path, 1)
            if len(labels) != len(images):
                raise DamagedError(f"does not belong to {images_path.name}: {len(labels)} labels, {len(images)} images")
        with reading(source, images_path):
            whole = block(source, split, images, labels)
        yield whole
