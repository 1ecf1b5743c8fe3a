"""CIFAR-10 and CIFAR-100, python and binary version, unpacked or straight from the archive."""

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
from cuber.datasets.unpickle import load_plain

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Version:
    """One of the published versions of a set."""

    title: str
    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    parse: Callable[[IO[bytes]], tuple[Images, Any]]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.train, self.test)

    def part(self, name: str) -> str:
        return "test" if name == self.test else "train"


def parse_python(file: IO[bytes]) -> tuple[Images, Any]:
    """Images and labels of a pickled batch."""
    batch = load_plain(cast(BinaryIO, file))
    if not isinstance(batch, dict):
        raise DamagedError("is a pickle, but not of a CIFAR batch")
    named = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    labels = named.get("fine_labels", named.get("labels"))
    data = named.get("data")
    if labels is None or not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (PIXELS,):
        raise DamagedError(f"is a pickle, but without the images and labels of a CIFAR batch (it has {sorted(named)})")
    return _channels_last(data), labels


def parse_binary(label_bytes: int, file: IO[bytes]) -> tuple[Images, Any]:
    """Images and labels of a file of records: the labels, the fine one last, then the pixels."""
    data = np.frombuffer(file.read(), np.uint8)
    if len(data) == 0 or len(data) % (label_bytes + PIXELS):
        raise DamagedError(f"is cut off: its {len(data)} bytes are not records of {label_bytes + PIXELS}")
    records = data.reshape(-1, label_bytes + PIXELS)
    return _channels_last(records[:, label_bytes:]), records[:, label_bytes - 1]


def _channels_last(rows: Images) -> Images:
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # a view: whoever writes it puts it in order


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
VERSIONS = {
    "cifar-10": (
        Version(
            "python version", "cifar-10-batches-py", "cifar-10-python.tar.gz", _BATCHES, "test_batch", parse_python
        ),
        Version(
            "binary version",
            "cifar-10-batches-bin",
            "cifar-10-binary.tar.gz",
            tuple(f"{name}.bin" for name in _BATCHES),
            "test_batch.bin",
            partial(parse_binary, 1),
        ),
    ),
    "cifar-100": (
        Version("python version", "cifar-100-python", "cifar-100-python.tar.gz", ("train",), "test", parse_python),
        Version(
            "binary version",
            "cifar-100-binary",
            "cifar-100-binary.tar.gz",
            ("train.bin",),
            "test.bin",
            partial(parse_binary, 2),
        ),
    ),
}


def layouts(source: Source, root: Path) -> list[Layout]:
    """Every version that is there: folders first, then archives."""
    unpacked, packed = [], []
    for place in (root / name for name in source.folders):
        for version in VERSIONS[source.name]:
            paths = [place / version.folder / name for name in version.names]
            files = tuple(path for path in paths if path.exists())
            if files:
                missing = tuple(path for path in paths if not path.exists())
                read = partial(_read_folder, source, version, place / version.folder)
                unpacked.append(Layout(version.title, files, missing, read))
            archive = place / version.archive
            if archive.exists():
                read = partial(_read_archive, source, version, archive)
                packed.append(Layout(f"{version.title}, packed", (archive,), (), read))
    return unpacked + packed


def _read_folder(source: Source, version: Version, folder: Path, notes: Notes) -> Iterator[Block]:
    for name in version.names:
        with reading(source, folder / name), (folder / name).open("rb") as file:
            batch = block(source, version.part(name), *version.parse(file))
        yield batch


def _read_archive(source: Source, version: Version, archive: Path, notes: Notes) -> Iterator[Block]:
    blocks: dict[str, Block] = {}
    # One pass in the archive's own order, since going back means to decompress anew; then the batches' order.
    with reading(source, archive), tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            if name in version.names and member.isreg():
                content = tar.extractfile(member)
                assert content is not None
                blocks[name] = block(source, version.part(name), *version.parse(content))
        absent = [name for name in version.names if name not in blocks]
        if absent:
            raise DamagedError(f"has no {', '.join(absent)} in it")
    for name in version.names:
        yield blocks.pop(name)
