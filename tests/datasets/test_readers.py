"""Every layout of every dataset is read correctly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cuber import datasets
from cuber.datasets import registry
from cuber.errors import CuberWarning
from tests.datasets import files

MINI = registry.MINI_IMAGENET.classes


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_idx(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    made = files.write_idx(tmp_path / folder, packed=packed)
    dataset = datasets.load(name, tmp_path)
    for what, array in made.items():
        np.testing.assert_array_equal(getattr(dataset, what), array)
    assert dataset.train_labels.dtype == np.int64
    assert dataset.train_images.dtype == np.uint8
    assert len(dataset.classes) == 10


def test_old_names_of_idx_files(tmp_path: Path) -> None:
    files.write_idx(tmp_path / "MNIST")
    for path in list((tmp_path / "MNIST").iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(datasets.load("mnist", tmp_path).train_images) == 30


@pytest.mark.parametrize(
    ("name", "place"), [("cifar-10", ""), ("cifar-10", "cifar10"), ("cifar-100", ""), ("cifar-100", "cifar100")]
)
@pytest.mark.parametrize("version", ["python", "binary"])
def test_cifar(tmp_path: Path, name: str, version: str, place: str) -> None:
    made = files.cifar_files(name, version)
    for file, (content, _, _) in made.items():
        files.write(tmp_path / place / files.CIFAR_FOLDERS[name, version] / file, content)
    dataset = datasets.load(name, tmp_path)
    *train, test = made.values()
    np.testing.assert_array_equal(dataset.train_images, np.concatenate([images for _, images, _ in train]))
    np.testing.assert_array_equal(dataset.train_labels, np.concatenate([labels for _, _, labels in train]))
    np.testing.assert_array_equal(dataset.test_images, test[1])
    np.testing.assert_array_equal(dataset.test_labels, test[2])


@pytest.mark.parametrize("folder", ["SVHN", "svhn", ""])
def test_svhn_numbers_zero_as_ten(tmp_path: Path, folder: str) -> None:
    made = files.write_svhn(tmp_path / folder)
    dataset = datasets.load("svhn", tmp_path)
    for what, array in made.items():
        np.testing.assert_array_equal(getattr(dataset, what), array)


def test_a_subset_says_so(tmp_path: Path) -> None:
    files.write_svhn(tmp_path)
    assert datasets.load("svhn", tmp_path).notes == (
        "22 training images where the official set has 73,257",
        "11 test images where the official set has 26,032",
    )


def test_notmnist_is_cleaned_before_it_is_split(tmp_path: Path) -> None:
    folder = tmp_path / "notMNIST_small"
    files.write_notmnist(folder)
    (folder / "A" / "empty.png").write_bytes(b"")
    whole = (folder / "B" / "000.png").read_bytes()
    (folder / "B" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "C" / "again.png").write_bytes((folder / "C" / "003.png").read_bytes())
    (folder / "J" / "elsewhere.png").write_bytes(whole)
    files.write_image(folder / "D" / "large.png", files.pictures(1, 30, 30)[0])
    with pytest.warns(CuberWarning, match="3 damaged files skipped"):
        dataset = datasets.load("notmnist", tmp_path)
    assert dataset.notes[0] == (
        "3 damaged files skipped: A/empty.png (empty), B/cut.png (not an image, or cut off), "
        "D/large.png (30x30 instead of 28x28)"
    )
    assert dataset.notes[1] == "2 exact duplicates removed before the split into train and test"
    assert np.bincount(dataset.train_labels).tolist() == [18] * 10
    assert np.bincount(dataset.test_labels).tolist() == [2] * 10
    everything = {image.tobytes() for images in (dataset.train_images, dataset.test_images) for image in images}
    assert len(everything) == 200


def test_many_damaged_files_are_named_in_part_and_counted(tmp_path: Path) -> None:
    files.write_notmnist(tmp_path / "notMNIST_small", 10)
    for number in range(13):
        (tmp_path / "notMNIST_small" / "A" / f"empty{number:02}.png").write_bytes(b"")
    with pytest.warns(CuberWarning, match="13 damaged files skipped: A/empty00.png .* and 3 more"):
        datasets.load("notmnist", tmp_path)


def test_notmnist_split_does_not_depend_on_file_names(tmp_path: Path) -> None:
    files.write_notmnist(tmp_path / "one" / "notMNIST_small", 10)
    files.write_notmnist(tmp_path / "two" / "notMNIST_small", 10)
    for path in list((tmp_path / "two").rglob("*.png")):
        path.rename(path.with_name(f"{999 - int(path.stem)}.png"))
    one, two = (datasets.load("notmnist", tmp_path / name) for name in ("one", "two"))
    np.testing.assert_array_equal(one.test_images, two.test_images)


def test_mini_imagenet_folders_with_a_split_keep_it(tmp_path: Path) -> None:
    for split, count in (("train", 2), ("test", 1)):
        for position, name in enumerate(MINI):
            for number in range(count):
                image = np.full((84, 84, 3), position * 2, np.uint8)
                files.write_image(tmp_path / "miniImageNet" / split / name / f"{number}.jpg", image)
    dataset = datasets.load("miniimagenet", tmp_path)
    assert dataset.train_labels.tolist() == [label for label in range(100) for _ in range(2)]
    assert dataset.test_labels.tolist() == list(range(100))
    assert np.abs(dataset.test_images[70].astype(int) - 140).max() <= 2  # JPEG


FEW = replace(registry.MINI_IMAGENET, classes=MINI[:4])


def blocks(root: Path) -> tuple[dict[str, list[int]], list[str], int]:
    layout = FEW.find_layout(root)
    assert layout is not None
    assert not layout.missing
    notes: list[str] = []
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for block in layout.read(notes):
        assert block.images.shape == (len(block.labels), 84, 84, 3)
        labels[block.split] += block.labels.tolist()
    return labels, notes, len(layout.files)


SIXTHS = {"train": [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5, "test": [0, 1, 2, 3]}


@pytest.mark.parametrize("subset", [("", "", "", ""), ("train", "train", "val", "test")])
def test_mini_imagenet_folders_without_a_split_are_split(tmp_path: Path, subset: tuple[str, ...]) -> None:
    for where, name in zip(subset, FEW.classes, strict=True):
        for number in range(6):
            files.write_image(
                tmp_path / "mini-imagenet" / where / name / f"{number}.jpg", files.pictures(1, 84, 84, 3)[0]
            )
    assert blocks(tmp_path) == (SIXTHS, [], 24)


def test_larger_images_of_mini_imagenet_are_resized(tmp_path: Path) -> None:
    for name in FEW.classes:
        for number in range(6):
            files.write_image(tmp_path / "miniimagenet" / name / f"{number}.jpg", files.pictures(1, 100, 90, 3)[0])
    assert blocks(tmp_path) == (SIXTHS, ["24 images resized to 84x84"], 24)


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("validation", ["val", "validation"])
def test_mini_imagenet_pickles(tmp_path: Path, protocol: int, validation: str) -> None:
    images = files.write_mini_pickles(tmp_path / "mini_imagenet", FEW.classes, protocol=protocol)
    (tmp_path / "mini_imagenet" / "mini-imagenet-cache-val.pkl").rename(
        tmp_path / "mini_imagenet" / f"mini-imagenet-cache-{validation}.pkl"
    )
    assert blocks(tmp_path) == (SIXTHS, [], 3)
    first = next(iter(FEW.find_layout(tmp_path).read([])))
    np.testing.assert_array_equal(first.images, images[:5])


def test_a_complete_layout_goes_before_an_incomplete_one(tmp_path: Path) -> None:
    files.write_idx(tmp_path / "MNIST/raw")
    (tmp_path / "MNIST/raw/train-labels-idx1-ubyte").unlink()
    made = files.write_idx(tmp_path / "mnist", train=40)
    np.testing.assert_array_equal(datasets.load("mnist", tmp_path).train_images, made["train_images"])
