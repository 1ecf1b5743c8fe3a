"""CIFAR-10 and CIFAR-100, python and binary version, unpacked or as an archive."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np

from cuber.datasets.readers.layout import Block, Images, Layout, Notes, block, reading
from cuber.datasets.source import DamagedError, Source
from cuber.datasets.unpickle import load_plain, text

PIXELS = 3 * 32 * 32
Parser = Callable[[IO[bytes]], tuple[Images, Any]]
"""From a file to images and labels."""


@dataclass(frozen=True)
class Version:
    """A published version of a dataset: file names, the test file last, and the parser of a file."""

    title: str
    folder: str
    archive: str
    names: tuple[str, ...]
    parse: Parser

    def read(self, source: Source, name: str, file: IO[bytes]) -> Block:
        return block(source, "test" if name == self.names[-1] else "train", *self.parse(file))


def _parse_python(file: IO[bytes]) -> tuple[Images, Any]:
    """Parse a pickled batch."""
    batch = load_plain(cast(BinaryIO, file))
    if not isinstance(batch, dict):
        raise DamagedError("is a pickle, but not of a CIFAR batch")
    named = {text(key): value for key, value in batch.items()}
    labels = named.get("fine_labels", named.get("labels"))
    data = named.get("data")
    if labels is None or not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (PIXELS,):
        raise DamagedError(f"is a pickle, but without the images and labels of a CIFAR batch (it has {sorted(named)})")
    return _channels_last(data), labels


def _parse_binary(label_bytes: int, file: IO[bytes]) -> tuple[Images, Any]:
    """Parse records of labels, the fine one last, and pixels."""
    data = np.frombuffer(file.read(), np.uint8)
    if len(data) == 0 or len(data) % (label_bytes + PIXELS):
        raise DamagedError(f"is cut off: its {len(data)} bytes are not records of {label_bytes + PIXELS}")
    records = data.reshape(-1, label_bytes + PIXELS)
    return _channels_last(records[:, label_bytes:]), records[:, label_bytes - 1]


def _channels_last(rows: Images) -> Images:
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _version(name: str, kind: str, folder: str, files: str, parse: Parser) -> Version:
    return Version(f"{kind} version", folder, f"{name}-{kind}.tar.gz", tuple(files.split()), parse)


_BATCHES = "data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch"
_BINARY_BATCHES = " ".join(f"{name}.bin" for name in _BATCHES.split())
VERSIONS = {
    "cifar-10": (
        _version("cifar-10", "python", "cifar-10-batches-py", _BATCHES, _parse_python),
        _version("cifar-10", "binary", "cifar-10-batches-bin", _BINARY_BATCHES, partial(_parse_binary, 1)),
    ),
    "cifar-100": (
        _version("cifar-100", "python", "cifar-100-python", "train test", _parse_python),
        _version("cifar-100", "binary", "cifar-100-binary", "train.bin test.bin", partial(_parse_binary, 2)),
    ),
}


def layouts(source: Source, root: Path) -> list[Layout]:
    """Return the layouts that exist: folders first, then archives."""
    unpacked, packed = [], []
    for place in (root / name for name in source.folders):
        for version in VERSIONS[source.name]:
            folder, archive = place / version.folder, place / version.archive
            paths = [folder / name for name in version.names]
            unpacked += Layout.find(version.title, paths, partial(_read_folder, source, version, folder))
            read = partial(_read_archive, source, version, archive)
            packed += Layout.find(f"{version.title}, packed", [archive], read)
    return unpacked + packed


def _read_folder(source: Source, version: Version, folder: Path, notes: Notes) -> Iterator[Block]:
    for name in version.names:
        with reading(source, folder / name), (folder / name).open("rb") as file:
            batch = version.read(source, name, file)
        yield batch


def _read_archive(source: Source, version: Version, archive: Path, notes: Notes) -> Iterator[Block]:
    blocks: dict[str, Block] = {}
    # Read once in the order of the archive, because seeking back decompresses it again.
    with reading(source, archive), tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            if name in version.names and member.isreg():
                content = tar.extractfile(member)
                assert content is not None
                blocks[name] = version.read(source, name, content)
        absent = [name for name in version.names if name not in blocks]
        if absent:
            raise DamagedError(f"has no {', '.join(absent)} in it")
    for name in version.names:
        yield blocks.pop(name)
