"""Downloads from a local server, and their failures."""

from __future__ import annotations

import errno
import hashlib
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from cuber import datasets
from cuber.datasets import fetch, registry
from cuber.datasets.source import Download
from cuber.errors import CuberError
from tests.datasets import files
from tests.datasets.conftest import Server

CONTENT = files.pictures(300, 28, 28).tobytes()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAUSE", 0.0)


def file(*urls: str, content: bytes = CONTENT, path: str = "file.bin", **more: str) -> Download:
    return Download(path, urls, len(content), hashlib.md5(content).hexdigest(), **more)


def refused(what: str, download: Download, folder: Path, bar: Counting | None = None) -> str:
    path = folder / download.name
    with pytest.raises(CuberError, match=what) as caught:
        fetch.download(download, path, bar)
    assert list(folder.iterdir()) == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Counting:
    """A progress bar that counts bytes, or raises an error."""

    def __init__(self, failure: OSError | None = None) -> None:
        self.total = self.count = 0
        self.failure = failure

    def update(self, count: int) -> None:
        if self.failure:
            raise self.failure
        self.count += count

    def reset(self) -> None:
        self.count = 0

    def close(self) -> None:
        pass


def test_good_file(tmp_path: Path, server: Server) -> None:
    server.content["/file.bin"] = CONTENT
    bar = Counting()
    fetch.download(file(server.url("/file.bin")), tmp_path / "deep" / "file.bin", bar)
    assert (tmp_path / "deep" / "file.bin").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file.bin"]
    assert bar.total == bar.count == len(CONTENT)


def test_wrong_checksum(tmp_path: Path, server: Server) -> None:
    server.content["/file.bin"] = CONTENT[:-1] + b"?"
    download = file(server.url("/file.bin"))
    assert download.md5 in refused("wrong checksum and was deleted", download, tmp_path)
    assert len(server.asked) == fetch.ATTEMPTS


def test_cut_off_transfer(tmp_path: Path, server: Server) -> None:
    server.content["/file.bin"] = CONTENT
    server.cut = fetch.ATTEMPTS
    refused("was cut off and nothing of it was kept", file(server.url("/file.bin")), tmp_path)
    server.cut = 1  # the second attempt begins anew
    fetch.download(file(server.url("/file.bin")), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("length", ["", "many", "-5", "0", "10", "1e9", "5, 6", "9" * 30, "²"])
@pytest.mark.parametrize("with_bar", [True, False])
def test_wrong_length(tmp_path: Path, server: Server, length: str, with_bar: bool) -> None:
    """One sentence, or the whole file where the length does not matter."""
    server.content["/file.bin"] = CONTENT
    server.lengths["/file.bin"] = length
    path = tmp_path / "file.bin"
    try:
        fetch.download(file(server.url("/file.bin")), path, Counting() if with_bar else None)
    except CuberError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert list(tmp_path.iterdir()) == []
    else:
        assert path.read_bytes() == CONTENT


def test_not_found_is_not_tried_again(tmp_path: Path, server: Server) -> None:
    sentence = refused("the server answers 404", file(server.url("/file.bin")), tmp_path)
    assert f"download {server.url('/file.bin')} by hand and put it at {tmp_path / 'file.bin'}" in sentence
    assert len(server.asked) == 1


def test_busy_server_is_tried_again(tmp_path: Path, server: Server) -> None:
    server.answers["/file.bin"] = 503
    refused("the server answers 503", file(server.url("/file.bin")), tmp_path)
    assert len(server.asked) == fetch.ATTEMPTS


def test_server_gone(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, but not listened at
        refused("cannot be reached", file(f"http://127.0.0.1:{unused.getsockname()[1]}/file.bin"), tmp_path)


def test_second_place(tmp_path: Path, server: Server) -> None:
    server.content["/second"] = CONTENT
    fetch.download(file(server.url("/first"), server.url("/second")), tmp_path / "file.bin")
    assert server.asked == ["/first", "/second"]


def test_proxy(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", server.url(""))
    server.content["http://far.invalid/file.bin"] = CONTENT
    fetch.download(file("http://far.invalid/file.bin"), tmp_path / "file.bin")
    assert server.asked == ["http://far.invalid/file.bin"]


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (errno.ENOSPC, "the disk is full: .* nothing was left behind"),
        (errno.EACCES, "cannot be written .Permission denied.; name another data directory"),
        (errno.EROFS, "cannot be written .Read-only file system."),
        (errno.EIO, "cannot be written"),
    ],
)
def test_this_machine_refuses(tmp_path: Path, server: Server, number: int, what: str) -> None:
    server.content["/file.bin"] = CONTENT
    failure = OSError(number, {13: "Permission denied", 30: "Read-only file system"}.get(number, "?"))
    refused(what, file(server.url("/file.bin")), tmp_path, Counting(failure))


def test_get_unpacks_and_can_be_repeated(tmp_path: Path, server: Server) -> None:
    made = files.cifar_files("cifar-100", "python")
    archive = files.tar_bytes([(f"cifar-100-python/{name}", content) for name, (content, _, _) in made.items()])
    server.content["/cifar.tar.gz"] = archive
    download = file(server.url("/cifar.tar.gz"), content=archive, path="cifar.tar.gz", unpacks_to="cifar-100-python")
    source = replace(registry.CIFAR_100, downloads=(download,))
    for _ in range(2):
        assert fetch.get(source, tmp_path) == [tmp_path / "cifar-100-python"]
        assert len(datasets.load("cifar-100", tmp_path).train_images) == 8
    assert len(server.asked) == 1
    (tmp_path / "cifar.tar.gz").write_bytes(b"damaged since")
    fetch.get(source, tmp_path)
    assert len(server.asked) == 2


def test_get_refuses_a_damaged_or_evil_archive(tmp_path: Path, server: Server) -> None:
    archive = files.tar_bytes([("../evil", b"x")])
    server.content["/a.tar.gz"] = archive
    download = file(server.url("/a.tar.gz"), content=archive, path="in/a.tar.gz", unpacks_to="set")
    with pytest.raises(CuberError, match=r"notmnist: .*a.tar.gz is refused: it would write ../evil"):
        fetch.get(replace(registry.NOTMNIST, downloads=(download,)), tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.tar.gz"]


def test_get_says_where_to_get_what_cannot_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(CuberError, match=f"https://image-net.org .* put it at {tmp_path}/miniImageNet"):
        fetch.get(registry.MINI_IMAGENET, tmp_path)


def test_no_room_to_unpack(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    archive = files.tar_bytes([("set/a", b"x")])
    server.content["/a.tar.gz"] = archive
    monkeypatch.setattr("cuber.datasets.fetch.shutil.copyfileobj", full)
    download = file(server.url("/a.tar.gz"), content=archive, path="a.tar.gz", unpacks_to="set")
    with pytest.raises(CuberError, match="the disk is full"):
        fetch.get(replace(registry.NOTMNIST, downloads=(download,)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
