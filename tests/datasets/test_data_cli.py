"""The command ``cuber data``."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cuber import datasets
from cuber.cli.data import app
from cuber.datasets.source import Download
from tests.datasets import files
from tests.datasets.conftest import Server


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def test_list(tmp_path: Path) -> None:
    files.write_idx(tmp_path / "MNIST/raw")
    files.write(tmp_path / "cifar-10-batches-py/test_batch", b"x")
    lines = run("--data-dir", str(tmp_path)).output
    assert f"in {tmp_path}" in lines
    for words in (
        ["mnist", "present", "MNIST/raw/", "CC BY-SA 3.0", "idx files"],
        ["cifar-10", "incomplete", "lacks cifar-10-batches-py/data_batch_1 and 4 more"],
        ["svhn", "missing", "246 MB", f"cuber data get svhn --data-dir {tmp_path}", "non-commercial"],
        ["miniimagenet", "missing", "see cuber data get miniimagenet"],
    ):
        assert all(word in lines for word in words), words


def test_directory_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBER_DATA", str(tmp_path / "there"))
    listed = run().output
    assert f"in {tmp_path / 'there'}" in listed
    assert "cuber data get svhn" in listed
    assert "get svhn --data-dir" not in listed
    assert "run 'cuber data get svhn', or" in str(run("check", "svhn").exception)


def test_get(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    content = files.tar_bytes(
        [(f"cifar-100-python/{name}", made[0]) for name, made in files.cifar_files("cifar-100", "python").items()]
    )
    server.content["/a.tar.gz"] = content
    download = Download(
        "a.tar.gz", (server.url("/a.tar.gz"),), len(content), hashlib.md5(content).hexdigest(), "cifar-100-python"
    )
    source = replace(datasets.find("cifar-100"), downloads=(download,), contents={})
    monkeypatch.setitem(datasets.SOURCES, "cifar-100", source)
    result = run("get", "cifar-100", "--data-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert f"cifar-100: {tmp_path / 'cifar-100-python'}" in result.output
    assert "please cite Krizhevsky" in result.output
    assert run("--data-dir", str(tmp_path), "get", "cifar-100").output == "cifar-100: already there\n"
    assert len(server.asked) == 1


def test_get_an_unknown_dataset(tmp_path: Path) -> None:
    result = run("get", "mnits", "--data-dir", str(tmp_path))
    assert str(result.exception).startswith("there is no dataset 'mnits'; did you mean 'mnist'?")


def test_check(tmp_path: Path) -> None:
    assert run("check", "--data-dir", str(tmp_path)).output == f"there is no dataset in {tmp_path}\n"
    files.write_notmnist(tmp_path / "notMNIST_small", 1)
    result = run("check", "--data-dir", str(tmp_path))
    assert (result.exit_code, result.output) == (0, "notmnist  no checksum  10 files\n10 files: 10 no checksum\n")
    files.write_idx(tmp_path / "MNIST/raw")
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    result = run("check", "mnist", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert f"mnist  missing  {tmp_path}/MNIST/raw/t10k-labels-idx1-ubyte.gz" in result.output
    assert "official 6bbc9ace898e44ae57da46a324031adb)" in result.output
    assert result.output.endswith("4 files: 3 differs, 1 missing\n")
