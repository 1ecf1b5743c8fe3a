"""A damaged or missing file raises one sentence: which file, what is wrong, what to do."""

from __future__ import annotations

import gzip
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from cuber import datasets
from cuber.datasets import registry
from cuber.errors import CuberError
from tests.datasets import files

FEW = replace(registry.MINI_IMAGENET, classes=registry.MINI_IMAGENET.classes[:4])


def complaint(name: str, root: Path) -> str:
    with pytest.raises(CuberError) as caught:
        datasets.load(name, root)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert not list(root.glob(".cuber/*"))  # neither a cache nor half of one
    return sentence


def mini_complaint(root: Path) -> str:
    with pytest.raises(CuberError) as caught:  # noqa: PT012
        layout = FEW.find_layout(root)
        assert layout is not None
        list(layout.read([]))
    return str(caught.value)


@pytest.mark.parametrize("name", datasets.SOURCES)
def test_nothing_there(tmp_path: Path, name: str) -> None:
    sentence = complaint(name, tmp_path)
    source = datasets.find(name)
    assert str(tmp_path) in sentence
    for download in source.downloads[:1]:
        assert f"its md5 is {download.md5}" in sentence
        assert f"download {download.urls[0]} and put it at {tmp_path / download.path}" in sentence
        assert f"run 'cuber data get {name} --data-dir {tmp_path}'" in sentence


def test_advice_about_damage_names_the_directory_too(tmp_path: Path) -> None:
    root = tmp_path / "my data"
    files.write_idx(root / "MNIST/raw")
    (root / "MNIST/raw/t10k-labels-idx1-ubyte").write_bytes(b"damaged")
    assert f"run 'cuber data get mnist --data-dir '{root}'', or" in complaint("mnist", root)


def test_mini_imagenet_says_where_to_get_it(tmp_path: Path) -> None:
    assert "https://image-net.org" in complaint("miniimagenet", tmp_path)


def test_unknown_name() -> None:
    with pytest.raises(CuberError, match="no dataset 'cifar100'; did you mean 'cifar-100'"):
        datasets.load("cifar100")


def test_one_file_missing(tmp_path: Path) -> None:
    files.write_idx(tmp_path / "MNIST/raw")
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    assert complaint("mnist", tmp_path) == (
        f"mnist: {tmp_path}/MNIST/raw/t10k-labels-idx1-ubyte.gz is missing; its md5 is "
        f"ec29112dd5afa0611ce80d1b7f02629c; run 'cuber data get mnist --data-dir {tmp_path}', or download "
        "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-labels-idx1-ubyte.gz and put it at "
        f"{tmp_path}/MNIST/raw/t10k-labels-idx1-ubyte.gz"
    )


def test_several_files_missing(tmp_path: Path) -> None:
    files.write(tmp_path / "cifar-10-batches-py/test_batch", b"")
    sentence = complaint("cifar-10", tmp_path)
    assert "data_batch_1 is missing and 4 more; its md5 is c99cafc152244af753f735de768cd75f" in sentence
    assert "download and unpack https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz" in sentence


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\0\0\x08", "cut off within its header"),
        (b"<html>404 not found</html>", "no idx file of 3 dimensions: it begins with 3c68746d"),
        (files.idx_bytes(files.pictures(30, 28, 28))[:-5], "cut off: 5 of 23520 bytes are missing"),
        (files.idx_bytes(files.pictures(30, 28, 28)) + b"x", "longer than"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "its header promises"),
        (files.idx_bytes(files.pictures(30, 20, 20)), r"shape (20, 20) instead of uint8 (28, 28)"),
        (files.idx_bytes(files.pictures(29, 28, 28)), "30 labels, 29 images"),
    ],
    ids=files.words,
)
def test_idx(tmp_path: Path, content: bytes, what: str) -> None:
    files.write_idx(tmp_path / "MNIST/raw")
    files.write(tmp_path / "MNIST/raw/train-images-idx3-ubyte", content)
    sentence = complaint("mnist", tmp_path)
    assert what in sentence
    assert "train-images-idx3-ubyte" in sentence


@pytest.mark.parametrize("keep", [5, 40, -4])
def test_packed_idx_cut_off(tmp_path: Path, keep: int) -> None:
    files.write_idx(tmp_path / "MNIST/raw", packed=True)
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    assert f"{path} is" in complaint("mnist", tmp_path)


def test_no_gzip_at_all(tmp_path: Path) -> None:
    files.write_idx(tmp_path / "MNIST/raw", packed=True)
    files.write(tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz", b"plain")
    assert "damaged or cut off (Not a gzipped file" in complaint("mnist", tmp_path)


def test_labels_out_of_range(tmp_path: Path) -> None:
    files.write_idx(tmp_path / "MNIST/raw")
    files.write(tmp_path / "MNIST/raw/train-labels-idx1-ubyte", files.idx_bytes(np.full(30, 10, np.uint8)))
    assert "labels that are not numbers from 0 to 9" in complaint("mnist", tmp_path)


def cifar(root: Path, version: str, train: bytes) -> Path:
    folder = files.CIFAR_FOLDERS["cifar-100", version]
    for file, (content, _, _) in files.cifar_files("cifar-100", version).items():
        files.write(root / folder / file, train if file.startswith("train") else content)
    return root / folder


PICTURES = files.channels_first(files.pictures(8, 32, 32, 3))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "cut off or no pickle"),
        (b"<html>", "cut off or no pickle"),
        (files.cifar_files("cifar-100", "python")["train"][0][:-100], "cut off or no pickle"),
        (files.cifar_files("cifar-100", "python")["train"][0][:20000], "cut off or no pickle"),
        (pickle.dumps([1, 2]), "not of a CIFAR batch"),
        (pickle.dumps({"data": [1]}), "without the images and labels of a CIFAR batch (it has ['data'])"),
        (files.python2_pickle({"data": PICTURES, "fine_labels": [1] * 7}), "8 images and 7 labels"),
        (files.python2_pickle({"data": PICTURES, "fine_labels": [100] * 8}), "not numbers from 0 to 99"),
        (files.python2_pickle({"data": PICTURES[:, :-1], "fine_labels": [1] * 8}), "without the images"),
    ],
    ids=files.words,
)
def test_cifar_python(tmp_path: Path, content: bytes, what: str) -> None:
    folder = cifar(tmp_path, "python", content)
    sentence = complaint("cifar-100", tmp_path)
    assert what in sentence
    assert f"{folder / 'train'} " in sentence
    assert "its md5 is 16019d7e3df5f24257cddd939b257f8d" in sentence


@pytest.mark.parametrize("keep", [0, 1000, -1])
def test_cifar_binary_cut_off(tmp_path: Path, keep: int) -> None:
    cifar(tmp_path, "binary", files.cifar_files("cifar-100", "binary")["train.bin"][0][:keep])
    sentence = complaint("cifar-100", tmp_path)
    assert "are not records of 3074" in sentence
    assert "no official checksum of it is known" in sentence


def test_svhn(tmp_path: Path) -> None:
    files.write_svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    for content in (b"", b"MATLAB", whole[:300], whole[:-100]):
        path.write_bytes(content)
        assert f"{path} is cut off or no MATLAB file" in complaint("svhn", tmp_path)
    for content, what in (
        ({"X": files.pictures(3, 32, 32, 3)}, "without the images X and the labels y"),
        ({"X": files.pictures(3, 32, 32), "y": [1, 2, 3]}, "instead of (32, 32, 3, N)"),
        ({"X": files.pictures(32, 32, 3, 4), "y": np.array([1, 2, 3])}, "4 images and 3 labels"),
        ({"X": files.pictures(32, 32, 3, 2), "y": np.array([1, 11])}, "not numbers from 0 to 9"),
    ):
        savemat(path, content)
        assert what in complaint("svhn", tmp_path)


def test_unknown_class_folder(tmp_path: Path) -> None:
    files.write_notmnist(tmp_path / "notMNIST_small", 2)
    (tmp_path / "notMNIST_small" / "K").mkdir()
    sentence = complaint("notmnist", tmp_path)
    assert f"{tmp_path}/notMNIST_small/K is not one of its 10 class folders (A, B, C, ...)" in sentence


def test_class_without_folder_or_images(tmp_path: Path) -> None:
    files.write_notmnist(tmp_path / "notMNIST_small", 2)
    for path in (tmp_path / "notMNIST_small" / "D").iterdir():
        path.write_bytes(b"")
    with pytest.raises(CuberError, match="/D has no image that can be read"):
        datasets.load("notmnist", tmp_path)
    for path in (tmp_path / "notMNIST_small" / "D").iterdir():
        path.unlink()
    assert "notMNIST_small/D is missing" in complaint("notmnist", tmp_path)


def test_mini_imagenet_folders(tmp_path: Path) -> None:
    image = files.pictures(1, 84, 84, 3)[0]
    for split in ("train", "test"):
        for name in FEW.classes:
            files.write_image(tmp_path / "miniImageNet" / split / name / "0.jpg", image)
    (tmp_path / "miniImageNet/test" / FEW.classes[1] / "0.jpg").write_bytes(b"damaged")
    assert f"has no test image of {FEW.classes[1]} that can be read" in mini_complaint(tmp_path)
    (tmp_path / "miniImageNet/test" / FEW.classes[1] / "0.jpg").unlink()
    layout = FEW.find_layout(tmp_path)
    assert layout is not None
    assert layout.missing == (tmp_path / "miniImageNet/test" / FEW.classes[1],)
    (tmp_path / "miniImageNet/train/cat").mkdir()
    assert "train/cat is not one of its 4 class folders" in mini_complaint(tmp_path)


def test_mini_imagenet_pickles(tmp_path: Path) -> None:
    place = tmp_path / "miniImageNet"
    files.write_mini_pickles(place, FEW.classes)
    path = place / "mini-imagenet-cache-train.pkl"
    images = files.pictures(6, 84, 84, 3)
    for content, what in (
        (path.read_bytes()[:-1000], "is cut off or no pickle"),
        (pickle.dumps({"labels": 1}, 2), "without image_data and class_dict (it has ['labels'])"),
        (pickle.dumps({"image_data": images, "class_dict": {"cat": [0]}}, 2), "names the class cat"),
        (pickle.dumps({"image_data": images, "class_dict": {FEW.classes[0]: [6]}}, 2), "do not belong to its 6 images"),
        (pickle.dumps({"image_data": images[:, :80], "class_dict": {FEW.classes[0]: [0]}}, 2), "shape (80, 84, 3)"),
    ):
        path.write_bytes(content)
        sentence = mini_complaint(tmp_path)
        assert what in sentence
        assert str(path) in sentence


def test_unreadable(tmp_path: Path) -> None:
    files.write_idx(tmp_path / "MNIST/raw")
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    path.unlink()
    path.mkdir()  # an error of the system that happens to root as well
    assert f"{path} cannot be read (Is a directory)" in complaint("mnist", tmp_path)


def test_crc_of_gzip_is_checked(tmp_path: Path) -> None:
    files.write_idx(tmp_path / "MNIST/raw", packed=True)
    path = tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz"
    packed = bytearray(gzip.compress(files.idx_bytes(np.zeros(30, np.uint8))))
    packed[-5] ^= 1
    path.write_bytes(bytes(packed))
    assert "CRC check failed" in complaint("mnist", tmp_path)
