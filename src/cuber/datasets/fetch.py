"""Download datasets, with checksums and retries; a failed download leaves nothing behind."""

from __future__ import annotations

import errno
import hashlib
import logging
import time
from pathlib import Path
from typing import Protocol

from cuber.datasets import archives
from cuber.datasets.source import DamagedError, Download, Source
from cuber.errors import CuberError

ATTEMPTS = 3
PAUSE = 2.0
"""Seconds before the second attempt; the third waits twice as long."""
TIMEOUT = 30.0


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
                archives.unpack(path, folder)
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


def md5_of(path: Path) -> str:
    """Return the md5 of a file."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
