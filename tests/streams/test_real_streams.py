"""The paper's streams, from the official files if CUBER_DATA is set."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from cuber import Stream, datasets
from cuber.streams import five_datasets, overlap_cifar100, permuted_mnist, split_cifar100, split_miniimagenet
from tests.datasets.test_real import OFFICIAL
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

REAL = os.environ.get("CUBER_DATA")
pytestmark = [
    pytest.mark.skipif(not REAL, reason="CUBER_DATA is not set"),
    pytest.mark.filterwarnings("ignore:notmnist. 2 damaged files"),
    pytest.mark.xdist_group("real"),
]
SETS = {
    permuted_mnist: ["mnist"],
    split_cifar100: ["cifar-100"],
    overlap_cifar100: ["cifar-100"],
    five_datasets: FIVE,
    split_miniimagenet: ["miniimagenet"],
}


def stream_of(build) -> Stream:
    for name in SETS[build]:
        if datasets.status(name, REAL).state != "present":
            pytest.skip(f"{name} is not there")
    return build(0, data_dir=REAL)


def histogram(stream: Stream, task: int) -> list[int]:
    train, validation, _ = splits(stream[task])
    return np.bincount(np.concatenate([train.y, validation.y])).tolist()


@pytest.mark.parametrize("build", SETS)
def test_no_image_is_in_both_train_and_test_of_a_task(build) -> None:
    stream = stream_of(build)
    check_rows(stream)
    check_mixed(stream)
    check_no_leak(stream.first(1) if build is permuted_mnist else stream)  # its tasks are made of the same images


def test_permuted_mnist() -> None:
    stream = stream_of(permuted_mnist)
    assert [len(split) for split in splits(stream[0])] == [54_000, 6_000, 10_000]
    assert all(histogram(stream, task) == OFFICIAL["mnist"][0] for task in range(10))
    assert np.bincount(stream[9].test.y).tolist() == OFFICIAL["mnist"][1]


@pytest.mark.parametrize(
    ("build", "ranges"), [(split_cifar100, [(10 * k, 10 * k + 9) for k in range(10)]), (overlap_cifar100, OVERLAP)]
)
def test_cifar_100(build, ranges) -> None:
    stream, dataset = stream_of(build), datasets.load("cifar-100", REAL)
    for position, (first, last) in enumerate(ranges):
        train, validation, test = splits(stream[position])
        copies = 4 if first <= 1 <= last else 0  # of fish, in the official set
        assert len(train) + len(validation) == 5000 - copies
        assert [len(validation), len(test)] == [250, 1000]
        assert classes_of(train, dataset.train_labels) == list(range(first, last + 1))
        assert classes_of(test, dataset.test_labels) == list(range(first, last + 1))
        assert histogram(stream, position) == [500, 500 - copies] + [500] * 8
        assert np.bincount(test.y).tolist() == [100] * 10
    assert stream.notes == ("classes 0-9: 4 training images left out, found among the test images too",)


def test_five_datasets() -> None:
    stream = stream_of(five_datasets)
    assert [task.name for task in stream] == FIVE
    check_different([stream[1], stream[3]])
    for position, name in enumerate(FIVE):
        if not any(note.startswith(f"{name}: ") and "official set" in note for note in stream.notes):
            assert histogram(stream, position) == OFFICIAL[name][0]
            assert np.bincount(stream[position].test.y).tolist() == OFFICIAL[name][1]
    assert "notmnist: 492 exact duplicates removed before the split into train and test" in stream.notes


def test_split_miniimagenet() -> None:
    stream, dataset = stream_of(split_miniimagenet), datasets.load("miniimagenet", REAL)
    classes = [classes_of(task.train, dataset.train_labels) for task in stream]
    assert sorted(number for group in classes for number in group) == list(range(100))
    counts = np.bincount(dataset.train_labels)
    for position, group in enumerate(classes):
        assert histogram(stream, position) == counts[group].tolist()


def test_start_and_memory_of_split_cifar100() -> None:
    """One pass over all batches takes less than 1.5 times the bytes of the set, from a warm cache."""
    stream_of(split_cifar100)
    script = """
import resource
from cuber.streams import FixedLoader, split_cifar100
import cuber.training, torch
torch.ones(64, 3, 32, 32).sum()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for task in split_cifar100():
    for split in (task.train, task.validation, task.test):
        for x, y in FixedLoader(split, 64, seed=0):
            pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(done.stdout) * 1024 < 1.5 * 60_000 * 3072
