"""The paper's streams, from small files in the official formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cuber import CuberError, datasets
from cuber.streams import (
    five_datasets,
    overlap_cifar100,
    overlap_fashion,
    permuted_mnist,
    split_cifar100,
    split_miniimagenet,
    stream_by_classes,
)
from cuber.streams.paper_streams import padded_transform
from tests.datasets.files import pictures
from tests.streams.paper import (
    FIVE,
    OVERLAP,
    check_different,
    check_mixed,
    check_no_leak,
    check_rows,
    classes_of,
    splits,
)

BUILDERS = [permuted_mnist, split_cifar100, overlap_cifar100, five_datasets, split_miniimagenet]


@pytest.mark.parametrize("build", BUILDERS)
def test_no_image_is_used_twice_in_a_task(build, data_dir: Path) -> None:
    stream = build(0, data_dir=data_dir)
    check_rows(stream)
    check_no_leak(stream)


@pytest.mark.parametrize("build", BUILDERS)
def test_the_seed_decides_and_the_test_images_do_not_depend_on_it(build, data_dir: Path) -> None:
    one, same, other = (build(seed, data_dir=data_dir) for seed in (0, 0, 1))
    assert torch.equal(one[0].train.rows, same[0].train.rows)
    assert not torch.equal(one[0].train.rows, other[0].train.rows)
    if build is not split_miniimagenet:  # whose seed shuffles the classes
        assert torch.equal(one[0].test.rows, other[0].test.rows)


def test_permuted_mnist(data_dir: Path) -> None:
    stream = permuted_mnist(0, data_dir=data_dir)
    dataset = datasets.load("mnist", data_dir)
    assert (stream.name, len(stream), stream.shared_head) == ("permuted-mnist", 10, True)
    orders = [task.train.transform.order for task in stream]
    for task, order in zip(stream, orders, strict=True):
        train, validation, test = splits(task)
        assert [len(split) for split in (train, validation, test)] == [54, 6, 30]
        assert torch.equal(train.rows, stream[0].train.rows)
        assert order.sort().values.equal(torch.arange(784))
        assert not order.equal(torch.arange(784))  # the first task too
        for split, labels in ((train, dataset.train_labels), (validation, dataset.train_labels)):
            assert np.array_equal(split.y, labels[split.rows])
        x, _ = next(test.batches([torch.tensor([4])], 0))
        expected = (dataset.test_images[4].reshape(-1)[order.numpy()] / 255 - 0.1307) / 0.3081
        np.testing.assert_allclose(x[0], expected, atol=1e-5)
    assert len({tuple(order.tolist()) for order in orders}) == 10


@pytest.mark.parametrize(
    ("build", "ranges"),
    [(split_cifar100, [(10 * k, 10 * k + 9) for k in range(10)]), (overlap_cifar100, OVERLAP)],
)
def test_cifar_100(build, ranges, data_dir: Path) -> None:
    stream, dataset = build(0, data_dir=data_dir), datasets.load("cifar-100", data_dir)
    assert [task.name for task in stream] == [f"classes {first}-{last}" for first, last in ranges]
    assert not stream.shared_head
    for task, (first, last) in zip(stream, ranges, strict=True):
        train, validation, test = splits(task)
        assert [len(train), len(validation), len(test), task.classes] == [38, 2, 40, 10]
        assert classes_of(train, dataset.train_labels) == list(range(first, last + 1))
        assert classes_of(test, dataset.test_labels) == list(range(first, last + 1))
        assert train.shape == (3, 32, 32)
    x, _ = next(stream[0].train.batches([torch.tensor([7])], 0))
    pixels = dataset.train_images[stream[0].train.rows[7]].transpose(2, 0, 1).astype(float)
    mean, std = (np.array(v).reshape(3, 1, 1) for v in ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)))
    np.testing.assert_allclose(x[0], (pixels - mean) / std, atol=1e-5)


def test_overlap_cifar100_with_other_images(data_dir: Path) -> None:
    stream, dataset = overlap_cifar100(0, images="other", data_dir=data_dir), datasets.load("cifar-100", data_dir)
    check_rows(stream)
    check_no_leak(stream)
    used = [set(task.train.rows.tolist()) | set(task.validation.rows.tolist()) for task in stream]
    assert sum(map(len, used)) == len(set.union(*used))  # no image is in two tasks
    for task, (first, last), rows in zip(stream, OVERLAP, used, strict=True):
        counts = np.bincount(dataset.train_labels[sorted(rows)], minlength=100)[first : last + 1]
        assert counts.tolist() == [2] * 10  # half of the images of each class
        assert classes_of(task.test, dataset.test_labels) == list(range(first, last + 1))
    assert "other images of a shared class in each task" in stream.notes
    with pytest.raises(CuberError, match="no choice of images 'more'"):
        overlap_cifar100(0, images="more", data_dir=data_dir)


def test_overlap_fashion(data_dir: Path) -> None:
    dataset = datasets.load("fashion-mnist", data_dir)
    stream = overlap_fashion(0, train_per_class=1, validation_per_class=1, data_dir=data_dir)
    check_no_leak(stream)
    assert [task.name for task in stream] == [f"classes {a}-{b}" for a, b in ((0, 3), (2, 5), (4, 7), (6, 9), (8, 1))]
    used: set[int] = set()
    for task in stream:
        assert (task.classes, len(task.train), len(task.validation), len(task.test)) == (4, 4, 4, 8)
        assert np.bincount(task.train.y).tolist() == [1] * 4
        assert np.bincount(task.validation.y).tolist() == [1] * 4
        rows = {*task.train.rows.tolist(), *task.validation.rows.tolist()}
        assert used.isdisjoint(rows)
        used |= rows
    last = stream[4]
    assert np.array_equal(dataset.train_labels[last.train.rows], np.array([8, 9, 0, 1])[last.train.y])
    with pytest.raises(CuberError, match=r"2 training and 1 validation images per class .* has 2 of fashion-mnist"):
        overlap_fashion(0, train_per_class=2, validation_per_class=1, data_dir=data_dir)


def test_split_miniimagenet(data_dir: Path) -> None:
    dataset = datasets.load("miniimagenet", data_dir)
    orders = []
    for seed in (0, 1):
        stream = split_miniimagenet(seed, data_dir=data_dir)
        assert [len(stream), {task.classes for task in stream}] == [20, {5}]
        classes = [classes_of(task.train, dataset.train_labels) for task in stream]
        assert classes == [classes_of(task.test, dataset.test_labels) for task in stream]
        assert [task.name for task in stream] == ["classes " + ",".join(map(str, group)) for group in classes]
        orders.append([number for group in classes for number in group])
        assert sorted(orders[-1]) == list(range(100))
        assert stream[0].train.shape == (3, 84, 84)
    assert orders[0] != orders[1]
    assert stream.notes  # a subset of the official set: the result will say so


def test_five_datasets(data_dir: Path) -> None:
    stream = five_datasets(0, data_dir=data_dir)
    assert [task.name for task in stream] == FIVE
    assert {task.train.shape for task in stream} == {(3, 32, 32)}
    assert {task.classes for task in stream} == {10}
    check_different([stream[1], stream[3]])
    check_mixed(stream)
    assert any(note.startswith("svhn: 22 training images") for note in stream.notes)
    paper = five_datasets(0, order="paper", data_dir=data_dir)
    assert [task.name for task in paper] == [*FIVE[:3], "notmnist", "fashion-mnist"]
    with pytest.raises(CuberError, match="no order of 5-Datasets 'text'"):
        five_datasets(0, order="text", data_dir=data_dir)


def test_mnist_twice(data_dir: Path) -> None:
    stream = five_datasets(0, mnist_twice=True, data_dir=data_dir)
    assert [task.name for task in stream] == [*FIVE[:3], "mnist again", "notmnist"]
    assert np.array_equal(stream[1].train.images, stream[3].train.images)
    assert stream.notes[0] == "MNIST in the place of Fashion-MNIST"


def test_training_images_that_are_test_images_are_left_out() -> None:
    images = pictures(40, 6, 6, 3)
    train, test = [(image, k % 4) for k, image in enumerate(images)], [(images[k], k % 4) for k in (5, 6, 17)]
    stream = stream_by_classes(datasets.read_items(train, test, side=6), 2)
    assert [len(task.train) for task in stream] == [18, 19]
    check_no_leak(stream.split(0.1))
    assert stream.notes == (
        "0, 1: 2 training images left out, found among the test images too",
        "2, 3: 1 training image left out, found among the test images too",
    )
    assert stream.first(1).notes == ("only 1 of 2 tasks", stream.notes[0])
    with pytest.raises(CuberError, match="every training image is also a test image"):
        stream_by_classes(datasets.read_items(train, train, side=6), 4)


def test_padded_grey_images_have_mean_0_and_deviation_1_where_the_statistics_are_their_own() -> None:
    dataset = datasets.read_items([(np.full((28, 28), k, np.uint8), k % 2) for k in range(250)], side=28, grey=True)
    x = padded_transform(dataset)(dataset.train_images)
    assert x.shape == (200, 3, 32, 32)
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.std()) - 1) < 0.01


def test_a_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CuberError, match=r"cifar-100: .*cuber data get cifar-100"):
        split_cifar100(data_dir=tmp_path)
