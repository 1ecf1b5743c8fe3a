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
from typing import Any

from cuber.datasets.source import ARCHIVE_ERRORS, DamagedError, Download, Source, describe_damage
from cuber.errors import CuberError, needs_extra

ATTEMPTS = 3
PAUSE = 2.0
"""Seconds before the second attempt; the third waits twice as long."""
TIMEOUT = 30.0
CHUNK = 1 << 20


def get(source: Source, root: Path, bar: Any = None) -> list[Path]:
    """Download and unpack the missing files of a dataset, and return the paths of all its files or folders.

    ``bar`` is a progress bar with the attributes that pooch uses: ``total``, ``update``, ``reset`` and ``close``.
    """
    if not source.downloads:
        raise CuberError(
            f"{source.name} cannot be downloaded: {source.how_to_get}; then put it at {root / source.folders[0]}"
        )
    paths = []
    for file in source.downloads:
        path = root / file.path
        if not path.exists() or md5_of(path) != file.md5:
            download(file, path, bar)
        if file.unpacks_to:
            archive, path = path, path.parent / file.unpacks_to
            try:
                unpack(archive, path)
            except DamagedError as error:
                raise source.error(archive, str(error)) from error
            except OSError as error:
                raise _cannot_write(error, path) from error
        paths.append(path)
    return paths


def download(file: Download, path: Path, bar: Any = None) -> None:
    """Download a file from the first mirror that has it, and verify its checksum."""
    with needs_extra("data", "a download"):
        import pooch  # imported here, with requests behind it, because it is slow
        from requests import HTTPError

    pooch.get_logger().setLevel(logging.WARNING)
    # Some servers otherwise send a .gz as a compressed transfer, and it arrives decompressed.
    headers = {"Accept-Encoding": "identity"}
    downloader = pooch.HTTPDownloader(progressbar=bar or False, chunk_size=1 << 16, timeout=TIMEOUT, headers=headers)
    urls = list(file.urls)
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE * attempt)
        for url in tuple(urls):
            try:
                pooch.retrieve(url, f"md5:{file.md5}", fname=path.name, path=path.parent, downloader=downloader)
                path.chmod(0o644)  # pooch makes it readable by its owner only
                return
            except (OSError, ValueError) as error:  # those of requests are OSErrors
                failure, message = error, _explain(error, file, url, path)
                if isinstance(error, HTTPError) and error.response is not None and error.response.status_code < 500:
                    urls.remove(url)
        if not urls:
            break
    raise CuberError(message) from failure


def _explain(error: OSError | ValueError, file: Download, url: str, path: Path) -> str:
    """Return what a failed transfer means and what to do; raise if a local file cannot be written."""
    from requests import exceptions

    by_hand = f"or download {url} by hand and put it at {path}"
    if isinstance(error, exceptions.HTTPError):
        code = error.response.status_code if error.response is not None else "nothing"
        return f"{url} is not available: the server answers {code}; try again later, {by_hand}"
    if isinstance(error, exceptions.ChunkedEncodingError | exceptions.ContentDecodingError):
        return f"the transfer of {url} was cut off and nothing of it was kept; try again, {by_hand}"
    if isinstance(error, exceptions.RequestException):
        return (
            f"{url} cannot be reached ({type(error).__name__}); check the network, or HTTPS_PROXY and HTTP_PROXY where "
            f"there is a proxy, {by_hand}"
        )
    if isinstance(error, OSError):
        raise _cannot_write(error, path) from error
    if "does not match the known hash" not in str(error):  # such as a Content-Length that is no number
        return f"the answer of {url} is invalid ({error}); try again later, {by_hand}"
    return (
        f"{url} came with the wrong checksum and was deleted (its md5 should be {file.md5}); try again, and if it "
        "happens again do not use the file, because it has been changed"
    )


def _cannot_write(error: OSError, path: Path) -> CuberError:
    """Return the error for a local file that cannot be written."""
    elsewhere = "name another data directory with --data-dir or CUBER_DATA"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        left = "could not be written and nothing was left behind"
        return CuberError(f"the disk is full: {path} {left}; free some space, or {elsewhere}")
    return CuberError(f"{path} cannot be written ({error.strerror}); {elsewhere}")


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
            with tarfile.open(archive) as tar:
                for member in tar:
                    _extract(tar, member, inside)
                assert tar.fileobj is not None
                while tar.fileobj.read(CHUNK):  # read to the end, where gzip has its checksum
                    pass
        except ARCHIVE_ERRORS as error:
            raise DamagedError(describe_damage(error)) from error
        whole = inside / folder.name if (inside / folder.name).is_dir() else inside
        if folder.exists():
            folder.rename(Path(temporary) / "before")
        whole.rename(folder)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    if member.isdir():
        return
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:  # links and devices may lead outside; no dataset has any
        raise DamagedError(f"is refused: it holds {member.name}, which is neither a file nor a folder")
    parts = PurePosixPath(member.name.replace("\\", "/")).parts
    if not parts or ".." in parts or parts[0].startswith("/") or ":" in parts[0]:
        raise DamagedError(f"is refused: it would write {member.name}, outside its folder")
    path = folder.joinpath(*parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            shutil.copyfileobj(content, file, CHUNK)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise DamagedError(f"is refused: it holds {member.name} both as a file and as a folder") from error


def md5_of(path: Path) -> str:
    """Return the md5 of a file."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
