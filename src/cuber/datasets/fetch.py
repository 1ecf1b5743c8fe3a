"""Download datasets, with checksums and retries, and unpack them; a failure leaves nothing behind."""

from __future__ import annotations

import errno
import hashlib
import logging
import shutil
import tarfile
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from cuber.datasets.readers.layout import ARCHIVE_ERRORS, describe_damage
from cuber.datasets.source import DamagedError, Download, Source
from cuber.errors import CuberError

ATTEMPTS = 3
PAUSE = 2.0
"""Seconds before the second attempt; the third waits twice as long."""
TIMEOUT = 30.0
CHUNK = 1 << 20


class Bar(Protocol):
    """Progress bar, as pooch calls it."""

    total: int

    def update(self, count: int) -> None: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...


def get(source: Source, root: Path, bar: Bar | None = None) -> list[Path]:
    """Download and unpack the missing files of a dataset, and return the paths of all its files or folders."""
    if not source.downloads:
        raise CuberError(
            f"{source.name} cannot be downloaded: {source.how_to_get}; then put it at {root / source.folders[0]}"
        )
    paths = []
    for file in source.downloads:
        path = root / file.path
        folder = path.parent / file.unpacks_to if file.unpacks_to else None
        if not path.exists() or md5_of(path) != file.md5:
            download(file, path, bar)
        if folder is not None:
            try:
                unpack(path, folder)
            except DamagedError as error:
                raise source.error(path, str(error)) from error
            except OSError as error:
                raise _cannot_write(error, folder) from error
        paths.append(folder or path)
    return paths


def download(file: Download, path: Path, bar: Bar | None = None) -> None:
    """Download a file from the first mirror that has it, and verify its checksum."""
    urls = list(file.urls)
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        for url in tuple(urls):
            try:
                return _transfer(file, url, path, bar)
            except _TransferError as error:
                failure = error
                if error.permanent:
                    urls.remove(url)
        if not urls:
            break
        if attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE * (attempt + 1))
    raise CuberError(str(failure)) from failure


class _TransferError(Exception):
    """A failed download from one mirror."""

    def __init__(self, message: str, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


def _transfer(file: Download, url: str, path: Path, bar: Bar | None) -> None:
    import pooch  # imported here, with requests behind it, because it is slow
    from requests import exceptions

    pooch.get_logger().setLevel(logging.WARNING)
    downloader = pooch.HTTPDownloader(
        progressbar=bar or False,
        chunk_size=1 << 16,
        timeout=TIMEOUT,
        # Some servers otherwise send a .gz as a compressed transfer, and it arrives decompressed.
        headers={"Accept-Encoding": "identity"},
    )
    by_hand = f"or download {url} by hand and put it at {path}"
    try:
        pooch.retrieve(url, f"md5:{file.md5}", fname=path.name, path=path.parent, downloader=downloader)
        path.chmod(0o644)  # pooch makes it readable by its owner only
    except exceptions.HTTPError as error:
        code = error.response.status_code if error.response is not None else 0
        message = f"{url} is not available: the server answers {code}; try again later, {by_hand}"
        raise _TransferError(message, permanent=code < 500) from error
    except (exceptions.ChunkedEncodingError, exceptions.ContentDecodingError) as error:
        message = f"the transfer of {url} was cut off and nothing of it was kept; try again, {by_hand}"
        raise _TransferError(message) from error
    except exceptions.RequestException as error:
        raise _TransferError(
            f"{url} cannot be reached ({type(error).__name__}); check the network, or HTTPS_PROXY and HTTP_PROXY where "
            f"there is a proxy, {by_hand}"
        ) from error
    except ValueError as error:
        if "does not match the known hash" not in str(error):
            raise
        raise _TransferError(
            f"{url} came with the wrong checksum and was deleted (its md5 should be {file.md5}); try again, and if it "
            "happens again do not use the file, because it has been changed"
        ) from error
    except OSError as error:
        raise _cannot_write(error, path) from error


def _cannot_write(error: OSError, path: Path) -> CuberError:
    """Return the error for a local file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CuberError(
            f"the disk is full: {path} could not be written and nothing was left behind; free some space, or name "
            "another data directory with --data-dir or CUBER_DATA"
        )
    return CuberError(
        f"{path} cannot be written ({error.strerror}); name another data directory with --data-dir or CUBER_DATA"
    )


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
        while tar.fileobj.read(CHUNK):  # read to the end, where gzip has its checksum
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
        shutil.copyfileobj(content, file, CHUNK)


def md5_of(path: Path) -> str:
    """Return the md5 of a file."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
