"""What is known about one dataset: its files, where they come from, and what to say when one is not right."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cuber.errors import CuberError


class DamagedError(Exception):
    """A file is not what it should be; whoever knows which file makes a sentence of it."""


@dataclass(frozen=True)
class Download:
    """One file of the official place: where it goes below the data directory, from where, how large, which checksum."""

    path: str
    urls: tuple[str, ...]
    size: int
    md5: str
    unpacks_to: str | None = None
    """The folder, beside the file, that an archive becomes."""

    @property
    def name(self) -> str:
        return Path(self.path).name


@dataclass(frozen=True)
class Source:
    """One dataset: what it is, whose it is, where it is, and how its images are normalized."""

    name: str
    title: str
    homepage: str
    licence: str
    citation: str
    classes: tuple[str, ...]
    train: int
    """Number of training images of the official set."""
    test: int
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    """Of each channel over the training images, for pixels in [0, 1], as the benchmarks' protocols have it."""
    std: tuple[float, ...]
    folders: tuple[str, ...]
    """Where it is looked for below the data directory; the first is where it is put."""
    downloads: tuple[Download, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
    """md5 of the files that are not downloaded but unpacked."""
    how_to_get: str = ""
    """What to do where nothing may be downloaded."""
    data_dir: str | None = None
    """The data directory, where somebody has named one: advice must name it too."""

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(download.size for download in self.downloads)

    @property
    def command(self) -> str:
        """What downloads it to where it is looked for."""
        where = f" --data-dir {shlex.quote(self.data_dir)}" if self.data_dir else ""
        return f"cuber data get {self.name}{where}"

    def md5(self, filename: str) -> str | None:
        """The official md5 of a file; None where nobody has published one."""
        for download in self.downloads:
            if download.name == filename:
                return download.md5
        return self.contents.get(filename)

    def where_to_get(self, path: Path) -> str:
        """How to come by a file: its checksum, where it is, the exact path to put it."""
        md5 = self.md5(path.name)
        checksum = f"its md5 is {md5}" if md5 else "no official checksum of it is known"
        if not self.downloads:
            return f"{checksum}; {self.how_to_get}, and put it at {path}"
        same = [file for file in self.downloads if file.name.removesuffix(".gz") == path.name.removesuffix(".gz")]
        file = (same or self.downloads)[0]
        how = "download" if file.name == path.name else "download and unpack"
        return f"{checksum}; run '{self.command}', or {how} {file.urls[0]} and put it at {path}"

    def complaint(self, path: Path, what: str) -> CuberError:
        """The sentence for a file that is missing or not right."""
        return CuberError(f"{self.name}: {path} {what}; {self.where_to_get(path)}")
