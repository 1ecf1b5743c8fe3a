"""Custom images: all input types give the same dataset, and mistakes raise an error."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from cuber import CuberError, datasets
from cuber.errors import CuberWarning
from tests.datasets import files

LETTERS = "abc"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of five PNG images of 12 x 10."""
    for seed, letter in enumerate(LETTERS):
        for number, image in enumerate(files.pictures(5, 10, 12, 3, seed=seed)):
            files.write_image(tmp_path / "mine" / letter / f"{number}.png", image)
    return tmp_path / "mine"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBER_CACHE", str(tmp_path / "cache"))


def rows(folder: Path) -> list[tuple[Image.Image, int]]:
    return [(Image.open(path), LETTERS.index(path.parent.name)) for path in sorted(folder.glob("*/*.png"))]


def bytes_of(dataset: datasets.ImageDataset) -> set[tuple[bytes, int]]:
    train = zip(dataset.train_images, dataset.train_labels, strict=True)
    test = zip(dataset.test_images, dataset.test_labels, strict=True)
    return {(image.tobytes(), int(label)) for image, label in (*train, *test)}


def test_a_folder_of_class_folders(folder: Path) -> None:
    dataset = datasets.read_folder(folder, side=10)
    assert repr(dataset) == "<mine: 12 train, 3 test, 3 classes, (10, 10, 3)>"
    assert dataset.classes == ("a", "b", "c")
    assert np.bincount(dataset.test_labels).tolist() == [1, 1, 1]
    # The shorter edge fits, so the middle of the longer one is kept as it was.
    expected = {(np.asarray(image)[:, 1:11].tobytes(), label) for image, label in rows(folder)}
    assert bytes_of(dataset) == expected
    np.testing.assert_allclose(dataset.mean, dataset.train_images.mean((0, 1, 2)) / 255, atol=1e-6)


def test_it_is_decoded_once_and_again_when_a_file_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = datasets.read_folder(folder, side=10)
    with monkeypatch.context() as patch:
        patch.setattr("cuber.datasets.image_readers.decode_files", None)
        second = datasets.read_folder(folder, side=10)
    assert isinstance(second.train_images, np.memmap)
    assert bytes_of(first) == bytes_of(second)
    files.write_image(folder / "a/0.png", np.zeros((30, 30, 3), np.uint8))
    assert bytes_of(datasets.read_folder(folder, side=10)) != bytes_of(first)
    assert datasets.read_folder(folder, side=6, grey=True).train_images.shape == (12, 6, 6)


def test_train_and_test_folders(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    folder.rename(tmp_path / "both/train")
    files.write_image(tmp_path / "both/val/b/7.png", files.pictures(1, 10, 10, 3)[0])
    dataset = datasets.read_folder(tmp_path / "both", side=10)
    assert (len(dataset.train_images), dataset.test_labels.tolist()) == (15, [1])
    files.write_image(tmp_path / "both/val/d/7.png", files.pictures(1, 10, 10, 3)[0])
    with pytest.raises(CuberError, match="class 'd' has images to test with but none to train with"):
        datasets.read_folder(tmp_path / "both", side=10)


def test_every_kind_of_object_gives_the_same_set(folder: Path) -> None:
    expected = bytes_of(datasets.read_folder(folder, side=10))
    pairs = rows(folder)
    image_folder = SequenceOf(pairs, classes=list(LETTERS))
    hugging = SequenceOf(
        [{"img": image, "kind": label} for image, label in pairs],
        features={"kind": SimpleNamespace(names=list(LETTERS))},
    )
    arrays = [(np.asarray(image), label) for image, label in pairs]
    tensors = [(torch.from_numpy(array.copy()).permute(2, 0, 1) / 255, torch.tensor(label)) for array, label in arrays]
    for items, names in ((image_folder, LETTERS), (hugging, LETTERS), (arrays, "012"), (tensors, "012")):
        columns = {"image": "img", "label": "kind"} if items is hugging else {}
        dataset = datasets.read_items(items, side=10, **columns)
        assert bytes_of(dataset) == expected
        assert dataset.classes == tuple(names)
        assert len(dataset.test_images) == 3
    named = datasets.read_items([(array, LETTERS[label]) for array, label in arrays], arrays_named(arrays), side=10)
    assert named.classes == ("a", "b", "c")
    assert len(named.test_images) == 15


class SequenceOf(list):
    """A list with attributes, such as ``classes``."""

    def __init__(self, items: list, **attributes: object) -> None:
        super().__init__(items)
        vars(self).update(attributes)


def arrays_named(arrays: list) -> list:
    return [(array, LETTERS[label]) for array, label in arrays]


def test_damaged_images_are_named_and_counted(folder: Path) -> None:
    (folder / "b/1.png").write_bytes(b"no image")
    with pytest.warns(CuberWarning, match=r"mine: 1 damaged file skipped: b/1.png \(not an image, or cut off\)"):
        dataset = datasets.read_folder(folder, side=10)
    assert len(dataset.train_images) + len(dataset.test_images) == 14
    assert len(dataset.notes) == 1


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        ([], "there are no images in it"),
        (iter([]), "something with a length"),
        ([{"image": 1}], r"items have no 'label' \(they have image\)"),
        ([1], "item 0 is a int"),
        ([(np.zeros((4, 4, 7), np.uint8), 0)] * 2, r"image of item 0 is of shape \(4, 4, 7\)"),
        ([(np.full((4, 4), -2.0), 0)] * 2, "numbers outside 0 to 1; give images before they are normalized"),
        ([(np.zeros((4, 4), np.int64), 0)] * 2, "is of int64"),
        ([(np.zeros((4, 4), np.uint8), 0)], "class '0' has one image only"),
    ],
)
def test_bad_objects(items, sentence: str) -> None:
    with pytest.raises(CuberError, match=sentence):
        datasets.read_items(items, side=4)


def test_bad_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CuberError, match="there is no folder"):
        datasets.read_folder(tmp_path / "none", side=10)
    with pytest.raises(CuberError, match=r"must be between 0 and 1, not 1\.5"):
        datasets.read_folder(folder, side=10, test_share=1.5)
    (folder / "d").mkdir()
    with pytest.raises(CuberError, match=r"d holds no images"):
        datasets.read_folder(folder, side=10)


@pytest.mark.parametrize("side", [0, -3, 2.5, True])
def test_images_have_at_least_one_pixel(folder: Path, side: object) -> None:
    for read in (partial(datasets.read_folder, folder), partial(datasets.read_items, rows(folder))):
        with pytest.raises(CuberError, match="side, in pixels, must be a whole number of at least 1, not"):
            read(side=side)
        assert read(side=np.int64(4)).train_images.shape[1:3] == (4, 4)
