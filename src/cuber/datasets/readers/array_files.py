"""Files that hold many images: idx (MNIST, Fashion-MNIST), pickles (CIFAR, miniImageNet) and MATLAB (SVHN)."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cuber.datasets.readers.layout import SPLITS, Block, Images, Notes, Reader, block, reading, split_class
from cuber.datasets.registry import DamagedError, Source
from cuber.datasets.unpickle import load_dictionary, text

IDX_NAMES = [f"{split}-{kind}-ubyte.gz" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
CIFAR_10_NAMES = [f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")]
CIFAR_100_NAMES = ["cifar-100-python/train", "cifar-100-python/test"]
SUBSETS = ("train", "val", "test")
PIXELS = 3 * 32 * 32
UNSIGNED_BYTE = 0x08


def _read_idx_files(source: Source, paths: Sequence[Path], notes: Notes) -> Iterator[Block]:
    for split, images_path, labels_path in zip(SPLITS, paths[::2], paths[1::2], strict=True):
        with reading(source, labels_path):
            labels = read_idx(labels_path, 1)
        with reading(source, images_path):
            whole = block(source, split, read_idx(images_path, 3), labels)
        yield whole


def read_idx(path: Path, dimensions: int) -> Images:
    """Read the uint8 array of an idx file."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    start = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]) or len(content) < start:
        raise DamagedError(f"is no idx file of {dimensions} dimensions: it begins with {content[:4].hex()}")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DamagedError(f"is cut off or too long: it has {len(content) - start} bytes, and its header says {shape}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_each(
    parse: Callable[[Path], tuple[Images, Any]], source: Source, paths: Sequence[Path], notes: Notes
) -> Iterator[Block]:
    """Read files that hold both images and labels; the names of those for testing begin with test."""
    for path in paths:
        with reading(source, path):
            whole = block(source, "test" if path.name.startswith("test") else "train", *parse(path))
        yield whole


def _read_batch(path: Path) -> tuple[Images, Any]:
    """Read a batch of CIFAR's python version."""
    named = load_dictionary(path)
    data, labels = named.get("data"), named.get("fine_labels", named.get("labels"))
    if labels is None or not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (PIXELS,):
        raise DamagedError(f"is a pickle, but without the images and labels of a CIFAR batch (it has {sorted(named)})")
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def _read_mat(path: Path) -> tuple[Images, Any]:
    """Read a MATLAB file, in which the digit 0 has the label 10."""
    from scipy.io import loadmat  # imported here because it is slow and a filled cache does not need it

    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # scipy raises unrelated types for damaged files
        if isinstance(error, OSError) and error.errno is not None:
            raise  # from the operating system, not from scipy
        raise DamagedError(f"is cut off or no MATLAB file ({error})") from error
    if "X" not in content or "y" not in content or content["X"].ndim != 4:
        raise DamagedError("is a MATLAB file, but without the images X and the labels y of SVHN")
    labels = content["y"].reshape(-1)
    return content["X"].transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels)


def _read_pickles(source: Source, paths: Sequence[Path], notes: Notes) -> Iterator[Block]:
    for path in paths:
        with reading(source, path):
            named = load_dictionary(path)
            images, indices = named.get("image_data"), named.get("class_dict")
            if not isinstance(images, np.ndarray) or not isinstance(indices, dict):
                raise DamagedError(f"is a pickle, but without image_data and class_dict (it has {sorted(named)})")
        for name, which in indices.items():
            with reading(source, path):
                blocks = list(_class_blocks(source, images, text(name), np.asarray(which)))
            yield from blocks


def _class_blocks(source: Source, images: np.ndarray, name: str, which: np.ndarray) -> Iterator[Block]:
    if name not in source.classes:
        raise DamagedError(f"names the class {name}, which is not one of its {len(source.classes)} classes")
    if which.ndim != 1 or which.dtype.kind not in "iu" or not set(which.tolist()) <= set(range(len(images))):
        raise DamagedError(f"has indices for {name} that do not belong to its {len(images)} images")
    for split, some in split_class(which.tolist()).items():
        yield block(source, split, images[some], np.full(len(some), source.classes.index(name)))


ARRAY_FILES: dict[str, tuple[str, list[str], Reader]] = {
    "mnist": ("idx files", IDX_NAMES, _read_idx_files),
    "fashion-mnist": ("idx files", IDX_NAMES, _read_idx_files),
    "cifar-10": ("python version", CIFAR_10_NAMES, partial(_read_each, _read_batch)),
    "cifar-100": ("python version", CIFAR_100_NAMES, partial(_read_each, _read_batch)),
    "svhn": ("MATLAB files", ["train_32x32.mat", "test_32x32.mat"], partial(_read_each, _read_mat)),
    "miniimagenet": ("cached pickles", [f"mini-imagenet-cache-{name}.pkl" for name in SUBSETS], _read_pickles),
}
"""Title, file names and reader of each dataset."""
