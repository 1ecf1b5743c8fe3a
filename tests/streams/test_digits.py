"""The streams of digits: classes, labels, and no sample in two splits."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from cuber import CuberError
from cuber.streams.digits import load_digits, overlap_digits, permuted_digits, split_digits


@cache
def row_of() -> dict[bytes, int]:
    """Row of each of the 1797 images."""
    x, _ = load_digits()
    return {image.numpy().tobytes(): row for row, image in enumerate(x)}


def rows(split) -> list[int]:
    """Rows of the images of a split."""
    return [row_of()[image.numpy().tobytes()] for image in split.x]


def test_no_two_digits_are_the_same_image():
    x, _ = load_digits()
    assert len(row_of()) == len(x) == 1797
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)


OVERLAP = [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9], [8, 9, 0, 1]]
SPLIT = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize(("build", "digits"), [(overlap_digits, OVERLAP), (split_digits, SPLIT)])
def test_labels_are_positions_in_the_task(build, digits):
    _, y = load_digits()
    stream = build(seed=3)
    assert not stream.shared_head
    for task, expected in zip(stream, digits, strict=True):
        assert task.classes == len(expected)
        for split in (task.train, task.validation, task.test):
            assert torch.equal(y[rows(split)], torch.tensor(expected)[split.y])
            assert set(split.y.tolist()) == set(range(len(expected)))


@pytest.mark.parametrize("build", [overlap_digits, split_digits])
def test_no_sample_is_trained_on_twice_or_tested_after_training(build):
    stream = build(seed=1)
    trained = [row for task in stream for row in rows(task.train)]
    held_out = [row for task in stream for row in rows(task.validation)]
    assert len(set(trained)) == len(trained)
    assert len(set(held_out)) == len(held_out)
    tested = {row for task in stream for row in rows(task.test)}
    assert not set(trained) & tested
    assert not set(held_out) & (set(trained) | tested)


def test_overlap_digits_has_as_many_samples_as_asked_for():
    task = overlap_digits(train_per_class=5, validation_per_class=7, test_per_class=11)[0]
    assert [len(split) for split in (task.train, task.validation, task.test)] == [20, 28, 44]
    assert overlap_digits(validation_per_class=0)[0].validation is None
    with pytest.raises(CuberError, match=r"more images of digit \d are wanted"):
        overlap_digits(train_per_class=60)
    with pytest.raises(CuberError, match="-1 more images"):
        overlap_digits(train_per_class=-1)


def test_tasks_that_share_digits_are_tested_on_the_same_samples():
    stream = overlap_digits()
    first, second, third = (set(rows(stream[position].test)) for position in range(3))
    assert first & second
    assert not first & third


def test_permuted_digits_permutes_the_same_samples():
    stream = permuted_digits(seed=2)
    assert len(stream) == 10
    assert stream.shared_head
    first = stream[0]
    assert sorted(rows(first.train) + rows(first.test) + rows(first.validation)) == list(range(1797))
    assert [len(split) for split in (first.train, first.validation, first.test)] == [1100, 100, 597]
    assert torch.equal(load_digits()[1][rows(first.test)], first.test.y)
    seen = set()
    for task in stream:
        # Each pixel is a column of numbers; the columns of a task are those of the first, in another order.
        pixels = _find_columns(torch.cat([first.train.x, first.test.x]), torch.cat([task.train.x, task.test.x]))
        seen.add(tuple(pixels))
        assert torch.equal(task.train.y, first.train.y)
        assert torch.equal(task.test.y, first.test.y)
        assert torch.equal(task.validation.y, first.validation.y)
    assert len(seen) == 10


def _find_columns(plain, permuted) -> list[int]:
    """Return the origin of each column; fail unless it is a permutation (some pixels are always blank)."""
    assert sorted(map(tuple, plain.T.tolist())) == sorted(map(tuple, permuted.T.tolist()))
    columns = {tuple(column): position for position, column in enumerate(plain.T.tolist())}
    return [columns[tuple(column)] for column in permuted.T.tolist()]


@pytest.mark.parametrize(("validation", "test"), [(100, 1697), (-1, 500), (100, 0)])
def test_permuted_digits_leaves_something_to_train_on(validation, test):
    with pytest.raises(CuberError, match="there are 1797 digits"):
        permuted_digits(validation=validation, test=test)


@pytest.mark.parametrize("build", [overlap_digits, split_digits, permuted_digits])
def test_the_seed_decides(build):
    one, same, other = build(seed=4), build(seed=4), build(seed=5)
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one[1].train.x, other[1].train.x)
