"""Search paths, status and checksums of datasets, and the registry."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cuber import datasets
from cuber.datasets.loading import INCOMPLETE, MISMATCH, MISSING, OK, PRESENT, UNKNOWN
from cuber.datasets.source import Source
from tests.datasets import files


@pytest.mark.parametrize("source", datasets.SOURCES.values(), ids=datasets.SOURCES)
def test_table(source: Source) -> None:
    assert len(source.mean) == len(source.std) == (source.shape[2] if len(source.shape) == 3 else 1)
    assert (
        len(source.classes)
        == len(set(source.classes))
        == (100 if "100" in source.name or "mini" in source.name else 10)
    )
    assert source.downloads or source.how_to_get
    assert source.license
    assert source.citation
    for md5 in [*source.contents.values(), *(download.md5 for download in source.downloads)]:
        assert re.fullmatch("[0-9a-f]{32}", md5)
    for download in source.downloads:
        place = download.unpacks_to or str(Path(download.path).parent)
        assert any(str(Path(folder)) in (place, ".") for folder in source.folders)
        assert all(url.endswith(f"/{download.name}") for url in download.urls)


def test_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert datasets.directory().name == "cuber"
    monkeypatch.setenv("CUBER_DATA", str(tmp_path / "environment"))
    assert datasets.directory() == tmp_path / "environment"
    assert datasets.directory("~/argument") == Path.home() / "argument"


def test_status(tmp_path: Path) -> None:
    missing = datasets.status("mnist", tmp_path)
    assert (missing.state, missing.places[0], missing.size) == (MISSING, tmp_path / "MNIST/raw", 0)
    files.write_idx(tmp_path / "mnist")
    (tmp_path / "mnist/t10k-labels-idx1-ubyte").unlink()
    incomplete = datasets.status("mnist", tmp_path)
    assert (incomplete.state, incomplete.missing) == (INCOMPLETE, (tmp_path / "mnist/t10k-labels-idx1-ubyte.gz",))
    files.write_idx(tmp_path / "mnist")
    present = datasets.status("mnist", tmp_path)
    assert (present.state, present.places, present.layout) == (PRESENT, (tmp_path / "mnist",), "idx files")
    assert present.size == sum(path.stat().st_size for path in (tmp_path / "mnist").iterdir())
    assert [status.state for status in datasets.statuses(tmp_path)] == [PRESENT] + [MISSING] * 6


def test_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_idx(tmp_path / "MNIST/raw")
    assert {verdict.state for verdict in datasets.check("mnist", tmp_path)} == {MISMATCH}
    assert not datasets.is_intact("mnist", tmp_path)
    source = datasets.find("mnist")
    md5 = {verdict.path.name: str(verdict.actual) for verdict in datasets.check("mnist", tmp_path)}
    monkeypatch.setitem(datasets.SOURCES, "mnist", replace(source, contents=md5))
    assert {verdict.state for verdict in datasets.check("mnist", tmp_path)} == {OK}
    assert datasets.is_intact("mnist", tmp_path)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    assert [verdict.state for verdict in datasets.check("mnist", tmp_path)] == [MISSING, OK, OK, OK]
    assert not datasets.is_intact("mnist", tmp_path)
    with pytest.raises(ValueError, match=r"svhn: .*train_32x32.mat is missing"):
        list(datasets.check("svhn", tmp_path))


def test_single_images_have_no_checksum(tmp_path: Path) -> None:
    files.write_notmnist(tmp_path / "notMNIST_small", 1)
    assert [verdict.state for verdict in datasets.check("notmnist", tmp_path)] == [UNKNOWN] * 10
    assert datasets.is_intact("notmnist", tmp_path)


def test_normalization_of_padded_images(tmp_path: Path) -> None:
    made = files.write_idx(tmp_path / "MNIST/raw")
    pixels = made["train_images"] / 255
    dataset = replace(datasets.load("mnist", tmp_path), mean=(pixels.mean(),), std=(pixels.std(),))
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))
    np.testing.assert_allclose(np.concatenate(dataset.padded_normalization(2)), [padded.mean(), padded.std()])
    np.testing.assert_allclose(np.concatenate(dataset.padded_normalization(0)), [pixels.mean(), pixels.std()])


def test_repr(tmp_path: Path) -> None:
    files.write_svhn(tmp_path)
    assert repr(datasets.load("svhn", tmp_path)).startswith(
        "<svhn: 22 train, 11 test, 10 classes, (32, 32, 3); 22 train"
    )
