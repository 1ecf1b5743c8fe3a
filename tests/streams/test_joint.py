"""Joint splits: every sample once, with its label and task, in the order of the indices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuber import CuberError, Task
from cuber.streams import FixedLoader, ImageSplit, JointSplit, ShuffledLoader, Split, Transform
from cuber.streams import loaders as module
from tests.streams.test_task import Pairs


def samples(task: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample n of task t has the pixels (t, n) and the label n + t."""
    numbers = torch.arange(count)
    return torch.stack([torch.full_like(numbers, task), numbers], dim=1).float(), numbers + task


def tensors(task: int, count: int) -> Split:
    data = samples(task, count)
    return Task("a", data, data).train


def dataset(task: int, count: int) -> Split:
    pairs = Pairs([(x, int(y)) for x, y in zip(*samples(task, count), strict=True)])
    return Task("a", pairs, pairs, classes=100).train


def images(task: int, count: int) -> Split:
    x, y = samples(task, count)
    pixels = torch.arange(2)
    return ImageSplit(x.numpy().astype(np.uint8), torch.arange(count), y, Transform((0.0,), (1 / 255,), order=pixels))


KINDS = [tensors, dataset, images]


def joint(sizes: list[int], kinds=KINDS) -> JointSplit:
    return JointSplit([kinds[task % len(kinds)](task, size) for task, size in enumerate(sizes)])


def told(batches) -> list[tuple[int, int]]:
    """Return (task, number) of every sample; fail unless its label and task are correct."""
    found = []
    for x, y, tasks in batches:
        x = x.round().long()  # images are scaled
        assert torch.equal(x[:, 0], tasks)
        assert torch.equal(x[:, 1] + tasks, y)
        found += list(zip(tasks.tolist(), x[:, 1].tolist(), strict=True))
    return found


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 7), st.integers(1, 20))
def test_every_sample_comes_once_with_its_label_and_task(sizes, batch_size, ahead):
    everything = [(task, number) for task, size in enumerate(sizes) for number in range(size)]
    before, module.READ_AHEAD = module.READ_AHEAD, ahead  # smaller and larger than a batch
    try:
        split = joint(sizes)
        assert len(split) == len(everything)
        assert told(FixedLoader(split, batch_size)) == everything
        loader = ShuffledLoader(split, batch_size, torch.Generator().manual_seed(1))
        batches = list(loader)
        assert len(batches) == len(loader)
        order = told(batches)
        assert sorted(order) == everything
        # The order is that of the indices, whatever is read together.
        expected = torch.randperm(len(split), generator=torch.Generator().manual_seed(1))
        assert order == [everything[index] for index in expected.tolist()]
    finally:
        module.READ_AHEAD = before


def test_batches_mix_the_tasks_and_each_pass_mixes_them_anew():
    loader = ShuffledLoader(joint([40, 40, 40]), 8, torch.Generator())
    first, second = list(loader), list(loader)
    for batches in (first, second):
        assert sum(len(tasks.unique()) == 3 for _, _, tasks in batches) > len(batches) / 2
    assert told(first) != told(second)


@pytest.mark.parametrize("kind", KINDS)
def test_one_part_gives_the_batches_that_it_gives_alone(kind):
    split = kind(0, 23)
    together, alone = (ShuffledLoader(each, 4, torch.Generator()) for each in (JointSplit([split]), split))
    for _ in range(2):
        for (x, y, tasks), (own_x, own_y) in zip(together, alone, strict=True):
            assert torch.equal(x, own_x)
            assert torch.equal(y, own_y)
            assert not tasks.any()


def test_it_can_be_taken_apart_again():
    split = joint([5, 4, 6])
    splits = split.subsets(torch.tensor([14, 0, 10, 4, 9]))
    assert splits.keys() == {0, 2}
    assert [x[:, 1].round().tolist() for x, _ in FixedLoader(splits[0], 9)] == [[0, 4]]
    assert [x[:, 1].round().tolist() for x, _ in FixedLoader(splits[2], 9)] == [[5, 1, 0]]


def test_looking_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    told(FixedLoader(joint([9, 9, 9]), 4, seed=3))
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_of_different_shapes_are_refused():
    wide = (torch.rand(4, 3), torch.arange(4))
    other = Task("b", wide, wide).train
    sentence = "samples of different tasks do not make one batch.*those of task 1 are of shape"
    with pytest.raises(CuberError, match=rf"{sentence} \(2,\), those of task 3 of \(3,\)"):
        JointSplit([dataset(0, 4), tensors(1, 4), images(2, 4), other])
    late = JointSplit([dataset(0, 4), other])  # what a Dataset holds is known when it is read
    with pytest.raises(CuberError, match="do not make one batch"):
        list(FixedLoader(late, 8))


class Noisy(Pairs):
    """A Dataset that draws a random number for every sample."""

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        x, y = super().__getitem__(place)
        return x + torch.randn(2), y


@pytest.mark.parametrize("stopped", [1, 3])
def test_random_numbers_are_drawn_batch_by_batch_wherever_reading_goes_on(stopped: int) -> None:
    def noisy(task: int, count: int) -> Split:
        pairs = Noisy([(x, int(y)) for x, y in zip(*samples(task, count), strict=True)])
        return Task("a", pairs, pairs, classes=100).train

    split, chunks = joint([20, 30], [noisy, tensors]), list(torch.arange(50).split(7))
    torch.manual_seed(0)
    reading = split.batches(chunks, 0)
    for _ in range(stopped):
        next(reading)
    state = torch.get_rng_state()
    rest = list(reading)
    torch.set_rng_state(state)
    again = list(split.batches(chunks[stopped:], 0))
    for one, other in zip(rest, again, strict=True):
        assert all(map(torch.equal, one, other))
