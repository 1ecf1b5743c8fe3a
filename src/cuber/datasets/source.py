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
    """A file to download.

    Args:
        path: Path below the data directory.
        urls: Mirrors, tried in this order.
        size: Size in bytes.
        md5: Checksum.
        unpacks_to: For an archive, the folder beside it to unpack it to.
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

    Args:
        name: Name in the command line.
        title: Name in messages.
        homepage: URL.
        license: License, or terms of use.
        citation: Paper to cite.
        classes: Class names, in the order of the labels.
        train: Number of training images of the official dataset.
        test: Number of test images of the official dataset.
        shape: Shape of an image.
        mean: Mean of each channel for pixels in [0, 1], as in the benchmarks' protocols.
        std: Standard deviation of each channel.
        folders: Folders below the data directory that are searched; the first is the download target.
        downloads: Files to download.
        contents: md5 of files that are not downloaded but unpacked.
        how_to_get: Advice for a dataset without downloads.
        data_dir: The data directory, if given by the user, to repeat it in advice.
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
