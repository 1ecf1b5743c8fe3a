"""Archives are unpacked inside their folder, completely or not at all."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from cuber.datasets.fetch import unpack
from cuber.datasets.source import DamagedError
from tests.datasets import files


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


MEMBERS = [("set/A/one.png", b"1"), ("set/B/two.png", b"22")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tar.gz", files.tar_bytes([link("set", "", tarfile.DIRTYPE), *MEMBERS])),
        ("a.tar", files.tar_bytes(MEMBERS, "w")),
        ("a.tar.gz", files.tar_bytes([("./set/A/one.png", b"1"), ("set/B/two.png", b"22")])),
    ],
    ids=files.words,
)
def test_unpack(tmp_path: Path, name: str, content: bytes) -> None:
    folder = tmp_path / "out" / "set"
    for _ in range(2):  # the second replaces what the first made
        unpack(files.write(tmp_path / name, content), folder)
        assert (folder / "A/one.png").read_bytes() == b"1"
        assert (folder / "B/two.png").read_bytes() == b"22"
        assert [path.name for path in folder.parent.iterdir()] == ["set"]
        files.write(folder / "old", b"")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tar.gz", files.tar_bytes([*MEMBERS, ("../evil", b"x")])),
        ("a.tar.gz", files.tar_bytes([*MEMBERS, ("set/../../evil", b"x")])),
        ("a.tar.gz", files.tar_bytes([("/nowhere-cuber/evil", b"x")])),
        ("a.tar.gz", files.tar_bytes([("..\\evil", b"x")])),
        ("a.tar.gz", files.tar_bytes([("C:\\evil", b"x")])),
        ("a.tar.gz", files.tar_bytes([link("set/up", "..", tarfile.SYMTYPE), ("set/up/evil", b"x")])),
        ("a.tar.gz", files.tar_bytes([link("set/passwd", "/etc/passwd", tarfile.LNKTYPE)])),
        ("a.tar.gz", files.tar_bytes([link("set/null", "", tarfile.CHRTYPE)])),
        ("a.tar.gz", files.tar_bytes([link("set/pipe", "", tarfile.FIFOTYPE)])),
        ("a.tar.gz", files.tar_bytes([("set/a", b"x"), ("set/a/b", b"x")])),
        ("a.tar.gz", files.tar_bytes([("set/a/b", b"x"), ("set/a", b"x")])),
    ],
    ids=files.words,
)
def test_refused(tmp_path: Path, name: str, content: bytes) -> None:
    archive = files.write(tmp_path / "in" / name, content)
    with pytest.raises(DamagedError, match="is refused: it"):
        unpack(archive, tmp_path / "in" / "set")
    assert list(tmp_path.rglob("*")) == [tmp_path / "in", archive]
    assert not Path("/nowhere-cuber").exists()


LARGE = [("set/large", files.pictures(200, 28, 28).tobytes())]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tar.gz", files.tar_bytes(LARGE)),
        ("a.tar", files.tar_bytes(LARGE, "w")[:158000]),
    ],
    ids=files.words,
)
def test_cut_off(tmp_path: Path, name: str, content: bytes, share: float) -> None:
    archive = files.write(tmp_path / name, content[: int(share * len(content))])
    files.write(tmp_path / "set" / "before", b"")
    with pytest.raises(DamagedError, match="is damaged or cut off"):
        unpack(archive, tmp_path / "set")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "set"])
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["before"]


def test_cut_off_after_the_last_member(tmp_path: Path) -> None:
    archive = files.write(tmp_path / "a.tar.gz", files.tar_bytes(MEMBERS)[:-6])
    with pytest.raises(DamagedError, match="is damaged or cut off"):
        unpack(archive, tmp_path / "set")
