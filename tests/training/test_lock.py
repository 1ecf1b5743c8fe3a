"""Locks of directories that several machines share."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

import pytest

from cuber.runs import lock
from cuber.runs.lock import InUseError, acquire, heartbeat, is_held
from cuber.training import RunDirectory

SECONDS = 0.2
OTHER = f"filelock/2\npid=1\nhost=another-machine\nmode=lease\ntoken=0f\nduration={SECONDS}\n"


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LEASE_SECONDS", SECONDS)
    monkeypatch.setattr(lock, "RENEWAL_SECONDS", SECONDS / 4)


def test_a_machine_that_does_not_renew_its_lease_is_dead_and_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".lease").write_text(OTHER)
    assert is_held(tmp_path) is None
    before = time.monotonic()
    held = acquire(tmp_path)
    assert time.monotonic() - before >= SECONDS
    assert is_held(tmp_path) is True
    held.release()
    assert not (tmp_path / ".lease").exists()
    assert is_held(tmp_path) is False


def test_a_lease_without_a_name_is_waited_for_once(tmp_path: Path) -> None:
    """As a power cut may leave it; it blocked the directory for good."""
    (tmp_path / ".lease").touch()
    held = acquire(tmp_path)
    assert (tmp_path / ".lease").stat().st_size
    held.release()


def test_a_machine_that_renews_its_lease_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".lease").write_text(OTHER)
    beats = itertools.count()
    monkeypatch.setattr(lock, "heartbeat", lambda _: next(beats))
    with pytest.raises(InUseError, match="another process is using"):
        acquire(tmp_path)
    assert (tmp_path / ".lease").read_text() == OTHER
    assert is_held(tmp_path) is None  # nor does this process hold the other lock any more


def test_a_lease_of_this_machine_does_not_count_without_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a copy of a directory in which a process works."""
    monkeypatch.setattr(lock, "LEASE_SECONDS", 1e6)
    (tmp_path / "one").mkdir()
    held = acquire(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert is_held(tmp_path / "copy") is False
    acquire(tmp_path / "copy").release()
    held.release()


def test_leases_are_renewed(tmp_path: Path) -> None:
    held, deadline = acquire(tmp_path), time.monotonic() + 60
    first = heartbeat(tmp_path)
    while heartbeat(tmp_path) == first:
        assert time.monotonic() < deadline
    assert not held.is_lost
    held.release()


def test_who_was_taken_for_dead_writes_nothing_more(tmp_path: Path) -> None:
    with pytest.raises(InUseError, match="taken over by another machine"), RunDirectory(tmp_path) as directory:  # noqa: PT012
        directory.open({"experiment": {"seed": 0}})
        (tmp_path / ".lease").unlink()
        (tmp_path / ".lease").write_text(OTHER)
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        directory.save({})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
