"""Readers of files that hold arrays: idx files of (Fashion-)MNIST, batches of CIFAR, MATLAB files of SVHN."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from cuber.datasets.source import SPLITS, Block, DamagedError, Images, Layout, Notes, Source
from cuber.datasets.unpickle import load_plain, text, whole_numbers
from cuber.errors import needs_extra

IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
UNSIGNED_BYTE = 0x08
CIFAR_PIXELS = 3 * 32 * 32


def idx_layouts(source: Source, folder: Path) -> Iterator[Layout]:
    """Yield the layout of the four files of MNIST or Fashion-MNIST, compressed or not."""
    paths = [_find_idx(folder, name) for name in IDX_NAMES]
    yield Layout.of_files("idx files", paths, partial(_read_idx_files, source, paths))


def cifar_layouts(source: Source, folder: Path) -> Iterator[Layout]:
    """Yield the layouts of the python version and of the binary version."""
    if source.name == "cifar-10":
        python, binary, label_bytes = "cifar-10-batches-py", "cifar-10-batches-bin", 1
        names = {**{f"data_batch_{number}": "train" for number in range(1, 6)}, "test_batch": "test"}
    else:
        python, binary, label_bytes = "cifar-100-python", "cifar-100-binary", 2
        names = {"train": "train", "test": "test"}
    splits = {folder / python / name: split for name, split in names.items()}
    yield _layout(source, "python version", splits, _parse_cifar_pickle)
    splits = {folder / binary / f"{name}.bin": split for name, split in names.items()}
    yield _layout(source, "binary version", splits, partial(_parse_cifar_records, label_bytes))


def svhn_layouts(source: Source, folder: Path) -> Iterator[Layout]:
    """Yield the layout of the two MATLAB files of SVHN's cropped digits."""
    yield _layout(source, "MATLAB files", {folder / f"{split}_32x32.mat": split for split in SPLITS}, _parse_mat)


Parser = Callable[[Path], tuple[Images, Any]]
"""From a file to images and labels."""


def _layout(source: Source, title: str, splits: Mapping[Path, str], parse: Parser) -> Layout:
    """Return a layout of files that each hold images and labels of one split."""

    def read(notes: Notes) -> Iterator[Block]:
        for path, split in splits.items():
            with source.reading(path):
                yield source.block(split, *parse(path))

    return Layout.of_files(title, list(splits), read)


def _find_idx(folder: Path, name: str) -> Path:
    """Return the path of the file under any of its names; the downloaded one first, to take precedence."""
    old = name.replace("-idx", ".idx")
    paths = [folder / f"{name}.gz", folder / name, folder / f"{old}.gz", folder / old]
    return next((path for path in paths if path.exists()), paths[0])


def _read_idx_files(source: Source, paths: list[Path], notes: Notes) -> Iterator[Block]:
    for split, images_path, labels_path in zip(SPLITS, paths[::2], paths[1::2], strict=True):
        with source.reading(labels_path):
            labels = read_idx(labels_path, 1)
        with source.reading(images_path):
            images = read_idx(images_path, 3)
            if len(labels) != len(images):
                raise DamagedError(f"does not belong to {labels_path.name}: {len(labels)} labels, {len(images)} images")
            yield source.block(split, images, labels)


def read_idx(path: Path, dimensions: int) -> Images:
    """Read the uint8 array of an idx file."""
    with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
        header = file.read(4 + 4 * dimensions)
        if len(header) < 4 + 4 * dimensions:
            raise DamagedError("is cut off within its header")
        if header[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
            raise DamagedError(f"is no idx file of {dimensions} dimensions: it begins with {header[:4].hex()}")
        shape = struct.unpack(f">{dimensions}I", header[4:])
        size = math.prod(shape)
        if size > np.iinfo(np.int32).max:
            raise DamagedError(f"is damaged: its header promises {shape}")
        content = file.read(size + 1)
    if len(content) < size:
        raise DamagedError(f"is cut off: {size - len(content)} of {size} bytes are missing")
    if len(content) > size:
        raise DamagedError(f"is longer than the {shape} its header promises")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _parse_cifar_pickle(path: Path) -> tuple[Images, Any]:
    """Parse a batch of the python version."""
    with path.open("rb") as file:
        batch = load_plain(file)
    if not isinstance(batch, dict):
        raise DamagedError("is a pickle, but not of a CIFAR batch")
    named = {text(key): value for key, value in batch.items()}
    data, labels = named.get("data"), named.get("fine_labels", named.get("labels"))
    if labels is None or not isinstance(data, np.ndarray) or data.shape[1:] != (CIFAR_PIXELS,):
        raise DamagedError(f"is a pickle, but without the images and labels of a CIFAR batch (it has {sorted(named)})")
    return _channels_last(data), whole_numbers(labels)


def _parse_cifar_records(label_bytes: int, path: Path) -> tuple[Images, Any]:
    """Parse a file of the binary version: records of labels, the fine one last, and pixels."""
    data = np.fromfile(path, np.uint8)
    if len(data) == 0 or len(data) % (label_bytes + CIFAR_PIXELS):
        raise DamagedError(f"is cut off: its {len(data)} bytes are not records of {label_bytes + CIFAR_PIXELS}")
    records = data.reshape(-1, label_bytes + CIFAR_PIXELS)
    return _channels_last(records[:, label_bytes:]), records[:, label_bytes - 1]


def _channels_last(rows: Images) -> Images:
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _parse_mat(path: Path) -> tuple[Images, Any]:
    """Parse a MATLAB file, in which the digit 0 has the label 10."""
    with needs_extra("data", "reading a MATLAB file"):
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
    return images.transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels)
