"""The official files, if CUBER_DATA is set."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from cuber import datasets
from cuber.datasets.loading import PRESENT

REAL = os.environ.get("CUBER_DATA")
pytestmark = [
    pytest.mark.skipif(not REAL, reason="CUBER_DATA is not set"),
    pytest.mark.filterwarnings("ignore:notmnist. 2 damaged files"),
    pytest.mark.xdist_group("real"),
]


def load(name: str) -> datasets.ImageDataset:
    if datasets.status(name, REAL).state != PRESENT:
        pytest.skip(f"{name} is not there")
    return datasets.load(name, REAL)


OFFICIAL = {
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion-mnist": ([6000] * 10, [1000] * 10),
    "cifar-10": ([5000] * 10, [1000] * 10),
    "cifar-100": ([500] * 100, [100] * 100),
    "svhn": (
        [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
        [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
    ),
    "notmnist": (
        [1664, 1668, 1664, 1663, 1663, 1665, 1665, 1661, 1437, 1664],
        [184, 185, 184, 184, 184, 185, 185, 184, 159, 184],
    ),
    "miniimagenet": ([500] * 100, [100] * 100),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_label_histograms(name: str) -> None:
    dataset = load(name)
    source = datasets.find(name)
    train, test = (np.bincount(labels).tolist() for labels in (dataset.train_labels, dataset.test_labels))
    assert dataset.train_images.shape[1:] == source.shape
    if any("official set" in note for note in dataset.notes):  # a subset: no class may have more than there are
        assert all(np.asarray(train) <= OFFICIAL[name][0])
        assert all(np.asarray(test) <= OFFICIAL[name][1])
    else:
        assert (train, test) == OFFICIAL[name]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10", "svhn", "notmnist"])
def test_statistics_are_those_of_the_training_images(name: str) -> None:
    dataset = load(name)
    some = dataset.train_images[:: len(dataset.train_images) // 10_000 | 1] / np.float32(255)
    axes = (0, 1, 2)  # an odd step, since MNIST takes turns between two groups of writers
    # The published values were rounded, and SVHN's are those of the full set; a wrong set is much further off.
    np.testing.assert_allclose(some.mean(axes, dtype=float), np.squeeze(dataset.mean), atol=0.005)
    np.testing.assert_allclose(some.std(axes, dtype=float), np.squeeze(dataset.std), atol=0.02)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "notmnist"])
def test_no_image_is_in_train_and_test(name: str) -> None:
    dataset = load(name)
    train = {image.tobytes() for image in dataset.train_images}
    assert not [image for image in dataset.test_images if image.tobytes() in train]


def test_notmnist_notes() -> None:
    notes = load("notmnist").notes
    assert len(notes) == 2
    assert notes[0].startswith(
        "2 damaged files skipped: A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png (empty), F/"
    )
    assert notes[1] == "492 exact duplicates removed before the split into train and test"


def test_fashion_is_not_mnist_again() -> None:
    assert not np.array_equal(load("fashion-mnist").train_images[:100], load("mnist").train_images[:100])


def test_class_names_of_cifar_100() -> None:
    load("cifar-100")
    meta = Path(str(REAL)) / "cifar-100-python" / "meta"
    if not meta.exists():
        pytest.skip("only the python version brings them")
    names = pickle.loads(meta.read_bytes(), encoding="latin1")["fine_label_names"]
    assert datasets.find("cifar-100").classes == tuple(names)


def test_python_version_is_read_as_numpy_would() -> None:
    layout = datasets.find("cifar-100").find_layout(Path(str(REAL)))
    if layout is None or layout.title != "python version":
        pytest.skip("no python version of cifar-100")
    batch = pickle.loads(layout.files[-1].read_bytes(), encoding="bytes")
    dataset = load("cifar-100")
    np.testing.assert_array_equal(dataset.test_labels, batch[b"fine_labels"])
    first = batch[b"data"][:100].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(dataset.test_images[:100], first)
