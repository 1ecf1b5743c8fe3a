"""Download datasets, with checksums and retries, and unpack them; a failure leaves nothing behind."""

from __future__ import annotations

import logging
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from cuber.datasets.readers.layout import ARCHIVE_ERRORS, describe_damage
from cuber.datasets.registry import DamagedError, Download, Source
from cuber.errors import CuberError

ATTEMPTS = 3
PAUSE = 2.0
"""Seconds before the second attempt; the third waits twice as long."""
TIMEOUT = 30.0
Bar = Any
"""Progress bar, as pooch calls it: ``total``, ``update``, ``reset`` and ``close``."""


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
    for attempt in range(1, ATTEMPTS + 1):
        for url in file.urls:
            try:
                return _transfer(file, url, path, bar)
            except _TransferError:
                if attempt == ATTEMPTS and url == file.urls[-1]:
                    raise
        time.sleep(PAUSE * attempt)


class _TransferError(CuberError):
    """A failed download from one mirror."""


def _transfer(file: Download, url: str, path: Path, bar: Bar | None) -> None:
    import pooch  # imported here, with requests behind it, because it is slow
    from requests.exceptions import RequestException

    pooch.get_logger().setLevel(logging.WARNING)
    downloader = pooch.HTTPDownloader(
        progressbar=bar or False,
        chunk_size=1 << 16,
        timeout=TIMEOUT,
        # Some servers otherwise send a .gz as a compressed transfer, and it arrives decompressed.
        headers={"Accept-Encoding": "identity"},
    )
    try:
        pooch.retrieve(url, f"md5:{file.md5}", fname=path.name, path=path.parent, downloader=downloader)
        path.chmod(0o644)  # pooch makes it readable by its owner only
    except RequestException as error:
        answer = "" if error.response is None else f": the server answers {error.response.status_code}"
        raise _TransferError(
            f"{url} cannot be downloaded ({type(error).__name__}{answer}); try again, check the network, and "
            f"HTTPS_PROXY and HTTP_PROXY where there is a proxy, or download it by hand and put it at {path}"
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
    return CuberError(
        f"{path} cannot be written ({error.strerror}) and nothing was left behind; free some disk space, or name "
        "another data directory with --data-dir or CUBER_DATA"
    )


def unpack(archive: Path, folder: Path) -> None:
    """Extract the archive's folder of the same name, or all its members, as ``folder``, replacing an earlier one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        inside = Path(temporary) / "unpacked"
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(inside, filter="data")
        except ARCHIVE_ERRORS as error:
            raise DamagedError(describe_damage(error)) from error
        whole = inside / folder.name if (inside / folder.name).is_dir() else inside
        if folder.exists():
            folder.rename(Path(temporary) / "before")
        whole.rename(folder)


def md5_of(path: Path) -> str:
    """Return the md5 of a file."""
    import pooch

    return str(pooch.file_hash(str(path), alg="md5"))
