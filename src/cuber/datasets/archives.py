"""Archives of strangers: unpacked into a folder of their own, whole or not at all, never outside it."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from cuber.datasets.source import DamagedError

BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile)
"""What the standard library raises for an archive that is cut off or none at all."""
_CHUNK = 1 << 20


def why_broken(error: Exception) -> str:
    """The first line of what such an error says: the rest is about what else was tried."""
    return f"is damaged or cut off ({(str(error).splitlines() or [type(error).__name__])[0].rstrip(':')})"


def unpack(archive: Path, folder: Path) -> None:
    """Make ``folder`` out of the archive's folder of that name (or of all it holds), in one step at the end."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        inside = Path(temporary) / "unpacked"
        inside.mkdir()
        try:
            for name, content in _members(archive):
                _write(inside, name, content)
        except BROKEN as error:
            raise DamagedError(why_broken(error)) from error
        whole = inside / folder.name if (inside / folder.name).is_dir() else inside
        if folder.exists():  # what is left of an earlier, incomplete one
            folder.rename(Path(temporary) / "before")
        whole.rename(folder)


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(archive):
        yield from _zip_members(archive)
    elif archive.suffix == ".gz" and not archive.name.endswith(".tar.gz"):
        with gzip.open(archive) as content:
            yield archive.stem, cast(IO[bytes], content)
    else:
        yield from _tar_members(archive)


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                # Links and devices lead outside; no dataset has any.
                raise DamagedError(f"is refused: it holds {member.name}, which is neither a file nor a folder")
            yield member.name, content
        assert tar.fileobj is not None
        while tar.fileobj.read(_CHUNK):  # to the end, where gzip says whether it was all
            pass


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            if member.is_dir():
                continue
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
                raise DamagedError(f"is refused: it holds {member.filename}, which is neither a file nor a folder")
            with zipped.open(member) as content:
                yield member.filename, content


def _write(folder: Path, name: str, content: IO[bytes]) -> None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or ".." in parts or parts[0].startswith("/") or ":" in parts[0]:
        raise DamagedError(f"is refused: it would write {name}, outside its folder")
    path = folder.joinpath(*parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise DamagedError(f"is refused: it holds {name} both as a file and as a folder") from error
    with file:
        shutil.copyfileobj(content, file, _CHUNK)
