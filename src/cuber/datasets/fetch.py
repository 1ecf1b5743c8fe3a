"""Downloads: checked, all or nothing, tried again, and every failure a sentence."""

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
"""Seconds before a transfer that failed is tried again, longer each time."""
TIMEOUT = 30.0
CHUNK = 1 << 16
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class Bar(Protocol):
    """What pooch asks of a progress bar."""

    total: int

    def update(self, count: int) -> None: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...


def get(source: Source, root: Path, bar: Bar | None = None) -> list[Path]:
    """Download what is missing of a set and unpack it; the paths of what is there afterwards."""
    if not source.downloads:
        raise CuberError(
            f"{source.name} cannot be downloaded: {source.how_to_get}; then put it at {root / source.folders[0]}"
        )
    there = []
    for file in source.downloads:
        path = root / file.path
        folder = path.parent / file.unpacks_to if file.unpacks_to else None
        if not path.exists() or md5_of(path) != file.md5:
            download(file, path, bar)
        if folder is not None:
            try:
                archives.unpack(path, folder)
            except DamagedError as error:
                raise source.complaint(path, str(error)) from error
            except OSError as error:
                raise _local(error, folder) from error
        there.append(folder or path)
    return there


def download(file: Download, path: Path, bar: Bar | None = None) -> None:
    """One file from the first of its places that has it, whole and with the right checksum, or no file at all."""
    failures: list[CuberError] = []
    urls = list(file.urls)
    for attempt in range(ATTEMPTS):
        for url in tuple(urls):
            try:
                return _transfer(file, url, path, bar)
            except _FinalError as error:
                urls.remove(url)
                failures.append(error.sentence)
            except _PassingError as error:
                failures.append(error.sentence)
        if not urls:
            break
        if attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE * (attempt + 1))
    raise failures[-1]


class _PassingError(Exception):
    """A failure that may not happen again."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = CuberError(sentence)


class _FinalError(_PassingError):
    """A failure that will."""


def _transfer(file: Download, url: str, path: Path, bar: Bar | None) -> None:
    import pooch  # here, with requests behind it: only those who download wait for the import
    from requests import exceptions

    pooch.get_logger().setLevel(logging.WARNING)
    downloader = pooch.HTTPDownloader(
        progressbar=bar or False,
        chunk_size=CHUNK,
        timeout=TIMEOUT,
        # Some servers otherwise send a .gz as a compressed transfer, and it arrives decompressed.
        headers={"Accept-Encoding": "identity"},
    )
    by_hand = f"or download {url} by hand and put it at {path}"
    try:
        pooch.retrieve(url, f"md5:{file.md5}", fname=path.name, path=path.parent, downloader=downloader)
        path.chmod(0o644)  # pooch leaves it readable by its owner only
    except exceptions.HTTPError as error:
        code = error.response.status_code if error.response is not None else 0
        kind = _PassingError if code >= 500 else _FinalError
        raise kind(f"{url} is not to be had: the server answers {code}; try again later, {by_hand}") from error
    except (exceptions.ChunkedEncodingError, exceptions.ContentDecodingError) as error:
        raise _PassingError(
            f"the transfer of {url} was cut off and nothing of it was kept; try again, {by_hand}"
        ) from error
    except exceptions.RequestException as error:
        raise _PassingError(
            f"{url} cannot be reached ({type(error).__name__}); check the network, or HTTPS_PROXY and HTTP_PROXY where "
            f"there is a proxy, {by_hand}"
        ) from error
    except ValueError as error:
        if "does not match the known hash" not in str(error):
            raise
        raise _PassingError(
            f"{url} came with the wrong checksum and was deleted (its md5 should be {file.md5}); try again: if it "
            "stays wrong, somebody has changed the file and it should not be used"
        ) from error
    except OSError as error:
        raise _local(error, path) from error


def _local(error: OSError, path: Path) -> CuberError:
    """The sentence for what this machine, not the other, has refused."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CuberError(
            f"the disk is full: {path} could not be written and nothing was left behind; make room, or name another "
            "data directory with --data-dir or CUBER_DATA"
        )
    if error.errno in NOT_ALLOWED:
        return CuberError(
            f"{path} cannot be written ({error.strerror}); name another data directory with --data-dir or CUBER_DATA"
        )
    return CuberError(f"{path} could not be written ({error}); try again, or name another data directory")


def md5_of(path: Path) -> str:
    """The md5 of a file, whatever its size."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
