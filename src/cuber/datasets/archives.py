"""Safe extraction of tar archives: nothing outside the target folder, and all or nothing."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from cuber.datasets.source import DamagedError

ARCHIVE_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)
"""Raised by the standard library for an archive that is truncated or not an archive."""
_CHUNK = 1 << 20


def describe_damage(error: Exception) -> str:
    """Return the first line of an archive error; tarfile lists everything it tried in the others."""
    return f"is damaged or cut off ({(str(error).splitlines() or [type(error).__name__])[0].rstrip(':')})"


def unpack(archive: Path, folder: Path) -> None:
    """Extract the archive's folder of the same name, or all its members, as ``folder``, replacing an earlier one.

    Raises:
        DamagedError: The archive is truncated, or has a member that is not a file or lies outside the folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        inside = Path(temporary) / "unpacked"
        inside.mkdir()
        try:
            _extract(archive, inside)
        except ARCHIVE_ERRORS as error:
            raise DamagedError(describe_damage(error)) from error
        whole = inside / folder.name if (inside / folder.name).is_dir() else inside
        if folder.exists():
            folder.rename(Path(temporary) / "before")
        whole.rename(folder)


def _extract(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:  # links and devices may lead outside; no dataset has any
                raise DamagedError(f"is refused: it holds {member.name}, which is neither a file nor a folder")
            _write(folder, member.name, content)
        assert tar.fileobj is not None
        while tar.fileobj.read(_CHUNK):  # read to the end, where gzip has its checksum
            pass


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
