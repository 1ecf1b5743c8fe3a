"""Loaders: every sample once, in an order determined by the seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuber import Task
from cuber.streams import FixedLoader, ShuffledLoader
from tests.streams.test_task import Pairs


def splits(count: int):
    x, y = torch.arange(float(count)).reshape(-1, 1), torch.zeros(count, dtype=torch.long)
    pairs = Pairs([(row, 0) for row in x])
    return [Task("a", data, data, classes=1).train for data in ((x, y), pairs)]


def order(loader) -> list[float]:
    return [value for x, _ in loader for value in x.flatten().tolist()]


@given(st.integers(1, 40), st.integers(1, 12))
def test_every_sample_comes_once_and_no_batch_of_one_is_left_over(count, batch_size):
    for split in splits(count):
        for loader in (
            FixedLoader(split, batch_size),
            FixedLoader(split, batch_size, seed=1),
            ShuffledLoader(split, batch_size, torch.Generator()),
        ):
            batches = list(loader)
            assert sorted(value for x, _ in batches for value in x.flatten().tolist()) == list(range(count))
            assert len(batches) == len(loader)
            assert all(len(x) == len(y) for x, y in batches)
            assert all(len(x) == batch_size for x, _ in batches[:-1])
            assert len(batches[-1][0]) > 1 or batch_size == 1 or count == 1


def test_training_order_changes_from_pass_to_pass_and_follows_the_generator():
    for split in splits(20):
        one, same = (ShuffledLoader(split, 3, torch.Generator().manual_seed(5)) for _ in range(2))
        first, second = order(one), order(one)
        assert first != second
        assert [order(same), order(same)] == [first, second]


def test_fixed_order_is_the_same_each_time_and_for_each_kind_of_part():
    tensors, dataset = splits(20)
    loader = FixedLoader(tensors, 3, seed=5)
    assert order(loader) == order(loader) == order(FixedLoader(dataset, 3, seed=5))
    assert order(loader) != order(FixedLoader(tensors, 3, seed=6))
    assert order(FixedLoader(tensors, 3)) == list(range(20))


@pytest.mark.parametrize("kind", [0, 1])
def test_looking_draws_nothing_from_the_global_generator(kind):
    split = splits(20)[kind]
    before = torch.get_rng_state()
    order(FixedLoader(split, 3, seed=5))
    next(iter(FixedLoader(split, 3)))
    order(ShuffledLoader(split, 3, torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before)
