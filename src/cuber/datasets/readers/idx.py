"""The format of MNIST and Fashion-MNIST: a short header, then bytes; gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from cuber.datasets.readers.layout import Block, Images, Layout, Notes, block, reading
from cuber.datasets.source import DamagedError, Source

PREFIX = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE = 0x08
CHUNK = 1 << 20  # gzip makes as many bytes beside those it is to fill


def layouts(source: Source, root: Path) -> list[Layout]:
    """Every folder that holds some of the four files."""
    found = []
    for folder in (root / name for name in source.folders):
        paths = {
            (part, kind): _find(folder, f"{prefix}-{kind}")
            for part, prefix in PREFIX.items()
            for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
        }
        files = tuple(path for path in paths.values() if path.exists())
        missing = tuple(path for path in paths.values() if not path.exists())
        if files:
            found.append(Layout("idx files", files, missing, partial(_read, source, paths)))
    return found


def read_idx(path: Path, dimensions: int) -> Images:
    """The array of unsigned bytes in an idx file."""
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
    """The file in any of its spellings: first the one that is downloaded, which a damaged other must not hide."""
    old = name.replace("-idx", ".idx")
    spellings = [folder / f"{name}.gz", folder / name, folder / f"{old}.gz", folder / old]
    return next((path for path in spellings if path.exists()), spellings[0])


def _read(source: Source, paths: dict[tuple[str, str], Path], notes: Notes) -> Iterator[Block]:
    for part in PREFIX:
        images_path, labels_path = paths[part, "images-idx3-ubyte"], paths[part, "labels-idx1-ubyte"]
        with reading(source, images_path):
            images = read_idx(images_path, 3)
        with reading(source, labels_path):
            labels = read_idx(labels_path, 1)
            if len(labels) != len(images):
                raise DamagedError(f"does not belong to {images_path.name}: {len(labels)} labels, {len(images)} images")
        with reading(source, images_path):
            whole = block(source, part, images, labels)
        yield whole
