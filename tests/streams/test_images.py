"""Image splits: normalization against a plain computation, and no copies in memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from cuber import CuberError, Task
from cuber.streams import FixedLoader, ImageSplit, ShuffledLoader, TensorSplit, Transform
from tests.datasets.files import pictures

GREY, COLOUR = pictures(12, 28, 28), pictures(12, 32, 32, 3)
MEAN, STD = (0.2, 0.4, 0.6), (0.3, 0.2, 0.1)


def split_of(images: np.ndarray, transform: Transform) -> ImageSplit:
    return ImageSplit(images, torch.arange(len(images)), torch.arange(len(images)) % 3, transform)


def test_colour_images_have_their_channels_first_and_each_is_normalized() -> None:
    expected = (COLOUR / 255 - np.array(MEAN)) / np.array(STD)
    got = Transform(MEAN, STD)(COLOUR)
    np.testing.assert_allclose(got, expected.transpose(0, 3, 1, 2), rtol=0, atol=1e-5)
    assert got.dtype == torch.float32
    assert got.is_contiguous()


def test_grey_images_are_padded_black_before_they_are_normalized_and_repeated() -> None:
    padded = np.pad(GREY, ((0, 0), (2, 2), (2, 2)))
    expected = np.repeat(((padded / 255 - 0.1) / 0.25)[:, None], 3, axis=1)
    got = Transform((0.1,), (0.25,), padding=2, channels=3)(GREY)
    assert got.shape == (12, 3, 32, 32)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_pixels_come_in_the_order_asked_for() -> None:
    order = torch.randperm(784)
    got = Transform((0.1307,), (0.3081,), order=order)(GREY)
    expected = ((GREY / 255 - 0.1307) / 0.3081).reshape(12, 784)[:, order.numpy()]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_bytes_are_not_changed_and_a_transform_is_small() -> None:
    before = GREY.copy()
    transform = Transform((0.5,), (0.5,), order=torch.randperm(784))
    transform(GREY)
    assert np.array_equal(GREY, before)
    again = pickle.loads(pickle.dumps(transform))
    assert torch.equal(again(GREY), transform(GREY))
    assert len(pickle.dumps(Transform(MEAN, STD))) < 1000


def test_loaders_give_what_they_give_for_the_same_samples_as_tensors() -> None:
    transform = Transform(MEAN, STD)
    images = split_of(COLOUR, transform)
    tensors = TensorSplit(transform(COLOUR), images.y)
    for make in (lambda p: ShuffledLoader(p, 5, torch.Generator().manual_seed(2)), lambda p: FixedLoader(p, 5, 3)):
        for (x, y), (other_x, other_y) in zip(make(images), make(tensors), strict=True):
            assert torch.equal(x, other_x)
            assert torch.equal(y, other_y)


def test_nothing_is_copied_until_a_batch_is_asked_for(tmp_path) -> None:
    np.save(tmp_path / "images.npy", COLOUR)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    whole = split_of(mapped, Transform(MEAN, STD))
    task = Task("a", whole, whole.subset(torch.tensor([3, 1])), classes=3)
    split = task.split(0.25, torch.Generator().manual_seed(0)).shrink(4, 1, torch.Generator())
    for piece in (split.train, split.validation, split.test):
        assert isinstance(piece, ImageSplit)
        assert np.shares_memory(piece.images, mapped)
    assert [len(split.train), len(split.validation), len(split.test)] == [4, 3, 1]  # one of each class to validate
    ((x, y),) = FixedLoader(whole.subset(torch.tensor([3, 1])), 8)
    np.testing.assert_array_equal(x, Transform(MEAN, STD)(COLOUR[[3, 1]]))
    assert y.tolist() == [0, 1]


def test_parts_that_do_not_go_together_are_refused() -> None:
    good = split_of(COLOUR, Transform(MEAN, STD))
    with pytest.raises(CuberError, match=r"its inputs are of shape \(1, 28, 28\), others of \(3, 32, 32\)"):
        Task("a", good, split_of(GREY, Transform((0.5,), (0.5,))))
    with pytest.raises(CuberError, match="label 2 is not one of the 2 classes"):
        Task("a", good, good, classes=2)
    with pytest.raises(CuberError, match="no samples"):
        Task("a", good.subset(torch.arange(0)), good)
    assert Task("a", good, good).classes == 3
