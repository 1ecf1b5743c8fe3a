"""The cache is correct or absent, also after crashes, on a full disk, and with several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cuber import datasets
from cuber.datasets import cache
from cuber.errors import CuberWarning
from tests.datasets import files


def load(root: Path) -> datasets.ImageDataset:
    return datasets.load("mnist", root)


def cached(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".cuber").glob("*"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files.write_idx(tmp_path / "MNIST/raw", train=1100)
    return tmp_path


def test_second_load_maps_what_the_first_wrote(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(root)
    monkeypatch.setattr("cuber.datasets.array_readers.read_idx", None)
    second = load(root)
    assert isinstance(second.train_images, np.memmap)
    assert not second.train_images.flags.writeable
    for what in ("train_images", "train_labels", "test_images", "test_labels", "notes", "classes"):
        np.testing.assert_array_equal(getattr(first, what), getattr(second, what))


def test_changed_files_are_read_anew_and_the_old_cache_goes(root: Path) -> None:
    load(root)
    (before,) = cached(root)
    made = files.write_idx(root / "MNIST/raw", train=40)
    np.testing.assert_array_equal(load(root).train_images, made["train_images"])
    (after,) = cached(root)
    assert after != before


def test_same_size_but_touched_is_read_anew(root: Path) -> None:
    load(root)
    before = cached(root)
    os.utime(root / "MNIST/raw/train-images-idx3-ubyte", ns=(1, 1))
    load(root)
    assert cached(root) != before


def test_another_directory_does_not_push_it_out(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["CUBER_CACHE"] = str(root / "shared")
    other = tmp_path_factory.mktemp("other")
    files.write_idx(other / "MNIST/raw", train=50)
    try:
        assert len(load(root).train_images) == 1100
        assert len(load(other).train_images) == 50
    finally:
        del os.environ["CUBER_CACHE"]
    assert len(list((root / "shared").iterdir())) == 2
    assert cached(root) == []


@pytest.mark.parametrize("file", [*cache.FILES, cache.CONTENTS])
@pytest.mark.parametrize("harm", ["cut", "gone", "empty"])
def test_broken_cache_is_made_anew(root: Path, file: str, harm: str) -> None:
    whole = np.array(load(root).train_images)
    (name,) = cached(root)
    path = root / ".cuber" / name / file
    content = path.read_bytes()
    path.unlink() if harm == "gone" else path.write_bytes(content[: len(content) // 2] if harm == "cut" else b"")
    again = load(root)
    np.testing.assert_array_equal(again.train_images, whole)
    assert path.read_bytes() == content
    assert cached(root) == [name]


def test_leftovers_of_a_killed_process_go_after_a_day(root: Path) -> None:
    load(root)
    (name,) = cached(root)
    prefix = name.rsplit("-", 1)[0]
    for leftover, age in (("old", cache.MAX_AGE + 60), ("new", 0.0)):
        folder = root / ".cuber" / f"{prefix}-0123456789abcdef.{leftover}.part"
        files.write(folder / "train_images.npy", b"half")
        moment = folder.stat().st_mtime - age
        os.utime(folder, (moment, moment))
    files.write_idx(root / "MNIST/raw", train=40)
    load(root)
    assert len(cached(root)) == 2
    assert [name for name in cached(root) if name.endswith(".part")] == [f"{prefix}-0123456789abcdef.new.part"]


# The package without what its front door imports: a process that needs no torch need not wait for it.
ALONE = f"""
import sys, types
sys.modules["cuber"] = types.ModuleType("cuber")
sys.modules["cuber"].__path__ = [{str(Path(datasets.__file__).parent.parent)!r}]
from cuber import datasets
"""

LOADER = f"""{ALONE}
from cuber.datasets import array_readers

read = array_readers.read_idx
def wait(*arguments):
    print("ready", flush=True)
    sys.stdin.readline()
    return read(*arguments)
array_readers.read_idx = wait
dataset = datasets.load("mnist", sys.argv[1])
print(type(dataset.train_images).__name__, int(dataset.train_images.sum()), len(dataset.test_labels))
"""


def test_two_processes_at_once(root: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", LOADER, str(root)], **pipes) for _ in range(2)]
    for process in processes:  # both are in the middle of it before either goes on
        assert process.stdout.readline() == "ready\n"
    answers = [process.communicate("\n" * 10, timeout=300)[0].splitlines()[-1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    expected = int(load(root).train_images.astype(int).sum())
    assert answers == [f"memmap {expected} 10"] * 2
    assert len(cached(root)) == 1


def test_directory_that_cannot_be_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(root / "file", b"")
    monkeypatch.setenv("CUBER_CACHE", str(root / "file" / "cache"))
    with pytest.warns(CuberWarning, match=r"mnist: .* cannot be kept in .*file/cache \(Not a directory\).*CUBER_CACHE"):
        dataset = load(root)
    assert len(dataset.train_images) == 1100
    assert not isinstance(dataset.train_images, np.memmap)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directory(root: Path) -> None:
    root.chmod(0o555)
    try:
        with pytest.warns(CuberWarning, match="Permission denied"):
            assert len(load(root).train_images) == 1100
    finally:
        root.chmod(0o755)


FULL = f"""{ALONE}
import resource, warnings
for limit in sys.argv[2:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = datasets.load("mnist", sys.argv[1])
    print([str(warning.message) for warning in caught][0])
    print(int(dataset.train_images.sum()), dataset.train_images.shape)
"""


def test_full_disk(root: Path) -> None:
    made = files.write_idx(root / "MNIST/raw", train=1100)
    command = [sys.executable, "-c", FULL, str(root), "0", "100", "500000"]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout.splitlines()
    assert len(output) == 6
    assert all("cannot be kept in" in line and "File too large" in line for line in output[::2])
    assert output[1::2] == [f"{int(made['train_images'].astype(int).sum())} (1100, 28, 28)"] * 3
    assert cached(root) == []


def test_damaged_file_leaves_no_cache(root: Path) -> None:
    path = root / "MNIST/raw/t10k-images-idx3-ubyte"  # the last but one: the training images are written by then
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="cut off"):
        load(root)
    assert cached(root) == []
