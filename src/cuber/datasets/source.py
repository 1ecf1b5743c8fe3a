"""Description of a dataset: its files, checksums, license, and the advice in its error messages."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cuber.errors import CuberError

Location = str | os.PathLike[str]


class DamagedError(Exception):
    """A file has wrong content; the message is the rest of a sentence that starts with its name."""


@dataclass(frozen=True)
class Download:
    """A file to download from the first of ``urls`` that has it to ``path``, below the data directory.

    An archive is unpacked to the folder ``unpacks_to`` beside it.
    """

    path: str
    urls: tuple[str, ...]
    size: int
    md5: str
    unpacks_to: str | None = None

    @property
    def name(self) -> str:
        return Path(self.path).name


@dataclass(frozen=True)
class Source:
    """Description of a dataset.

    ``train`` and ``test`` are the numbers of images of the official dataset, ``mean`` and ``std`` those of each channel
    for pixels in [0, 1], as in the benchmarks' protocols. ``folders`` are searched below the data directory; the first
    is the download target. ``contents`` has the md5 of unpacked files. ``how_to_get`` is the advice for a dataset that
    cannot be downloaded, and ``data_dir`` the data directory to name in advice, if the user has given one.
    """

    name: str
    title: str
    homepage: str
    license: str
    citation: str
    classes: tuple[str, ...]
    train: int
    test: int
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    folders: tuple[str, ...]
    downloads: tuple[Download, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
    how_to_get: str = ""
    data_dir: str | None = None

    @property
    def size(self) -> int:
        """Number of bytes to download."""
        return sum(download.size for download in self.downloads)

    @property
    def command(self) -> str:
        """Command that downloads the dataset."""
        where = f" --data-dir {shlex.quote(self.data_dir)}" if self.data_dir else ""
        return f"cuber data get {self.name}{where}"

    def md5(self, filename: str) -> str | None:
        """Return the official md5 of a file, or None if none was published."""
        downloads = {download.name: download.md5 for download in self.downloads}
        return downloads.get(filename) or self.contents.get(filename)

    def advice(self, path: Path) -> str:
        """Return the checksum of a file and how to get it."""
        md5 = self.md5(path.name)
        checksum = f"its md5 is {md5}" if md5 else "no official checksum of it is known"
        if not self.downloads:
            return f"{checksum}; {self.how_to_get}, and put it at {path}"
        same = [file for file in self.downloads if file.name.removesuffix(".gz") == path.name.removesuffix(".gz")]
        file = (same or self.downloads)[0]
        how = "download" if file.name == path.name else "download and unpack"
        return f"{checksum}; run '{self.command}', or {how} {file.urls[0]} and put it at {path}"

    def error(self, path: Path, what: str) -> CuberError:
        """Return the error for a file that is missing or damaged."""
        return CuberError(f"{self.name}: {path} {what}; {self.advice(path)}")
