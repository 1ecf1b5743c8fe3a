"""The episodic memory and the reservoir: uniform sampling, and lossless storage."""

from __future__ import annotations

import io
from collections import OrderedDict, namedtuple
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from cuber import CuberError
from cuber.core.state import nbytes
from cuber.replay import EpisodicMemory, Reservoir, check_alike, mixture


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(begin: int, end: int, batch_size: int = 7) -> list[tuple[Tensor, Tensor]]:
    """Samples that contain their number."""
    values = torch.arange(begin, end)
    return [(part.double().unsqueeze(1), part) for part in values.split(batch_size)]


def memory_of(task: int, loader: Any, before: EpisodicMemory | None = None) -> EpisodicMemory:
    return (before or EpisodicMemory()).add(task, Reservoir(1000, generator()).read(loader).new())


def contents(memory: EpisodicMemory) -> list[tuple[int, int]]:
    """Return (task, number) of all samples of a memory."""
    drawn = memory.draw(len(memory), generator())
    return [(task, int(number)) for task, (_, numbers) in drawn for number in numbers]


def reservoir_after(sizes: list[int], capacity: int, source: torch.Generator) -> list[int]:
    """Read a stream with several reservoirs, each continuing the one before."""
    memory, seen = EpisodicMemory(), 0
    for task, size in enumerate(sizes):
        reservoir = Reservoir(capacity, source, seen).read(numbers(seen, seen + size))
        memory, seen = memory.only(reservoir.old()).add(task, reservoir.new()), reservoir.seen
    assert seen == sum(sizes)
    assert len(memory) == min(seen, capacity)
    return [number for _, number in contents(memory)]


def test_every_sample_of_a_stream_has_the_same_chance_and_none_two_places() -> None:
    sizes, capacity, repetitions = [9, 4, 14, 23], 10, 250
    source, hits = generator(1), torch.zeros(sum(sizes))
    for _ in range(repetitions):
        kept = reservoir_after(sizes, capacity, source)
        assert len(set(kept)) == len(kept) == capacity
        hits[kept] += 1
    chance = capacity / sum(sizes)
    deviation = (repetitions * chance * (1 - chance)) ** 0.5
    assert (hits - repetitions * chance).abs().max() < 4 * deviation
    # Over all samples, not only for the worst: chi squared with 49 degrees of freedom, its 99.9th percentile.
    assert ((hits - repetitions * chance) / deviation).square().sum() * (1 - 1 / sum(sizes)) < 85.4


def test_every_pair_that_could_be_kept_of_four_is_kept_equally_often() -> None:
    source, repetitions, hits = generator(2), 600, dict.fromkeys(combinations(range(4), 2), 0)
    for _ in range(repetitions):
        earlier = Reservoir(2, source).read(numbers(0, 3))
        before = [int(sample.rows[1]) for sample in earlier.new()]
        later = Reservoir(2, source, earlier.seen).read(numbers(3, 4))
        kept = [before[place] for place in later.old()] + [int(sample.rows[1]) for sample in later.new()]
        hits[tuple(sorted(kept))] += 1
    expected = repetitions / 6
    assert all(abs(count - expected) < 4 * (expected * 5 / 6) ** 0.5 for count in hits.values())


def test_less_than_there_are_places_for_is_kept_whole() -> None:
    assert sorted(reservoir_after([3, 5], 10, generator())) == list(range(8))
    assert sorted(reservoir_after([10], 10, generator())) == list(range(10))


def test_a_reservoir_without_places_keeps_nothing_and_counts_all_the_same() -> None:
    reservoir = Reservoir(0, generator()).read(numbers(0, 20))
    assert (reservoir.new(), reservoir.old(), reservoir.seen) == ([], [], 20)


def test_what_is_kept_is_a_copy_of_its_own() -> None:
    scale = torch.tensor(2.0)
    loader = [(*pair, scale) for pair in numbers(0, 5)]
    memory = memory_of(0, loader)
    loader[0][0].zero_()
    scale.zero_()
    ((_, (x, y, kept)),) = memory.draw(5, generator())
    assert torch.equal(x.flatten(), y.double())
    assert kept == 2


def test_a_loader_may_fill_the_same_tensors_again_and_again() -> None:
    class Refilled:
        def __iter__(self) -> Any:
            x, y = torch.zeros(5, 1), torch.zeros(5, dtype=torch.long)
            for more_x, more_y in numbers(0, 20, 5):
                yield x.copy_(more_x), y.copy_(more_y)

    assert sorted(contents(memory_of(0, Refilled()))) == [(0, number) for number in range(20)]


def test_a_loader_without_batches_is_told_so() -> None:
    with pytest.raises(CuberError, match="yields no batch"):
        Reservoir(5, generator()).read([])


def test_a_draw_is_of_different_samples_and_all_have_the_same_chance() -> None:
    memory = memory_of(1, numbers(100, 115), memory_of(0, numbers(0, 5)))
    source, hits = generator(3), dict.fromkeys([(0, n) for n in range(5)] + [(1, n) for n in range(100, 115)], 0)
    for _ in range(1000):
        drawn = [(task, int(n)) for task, (x, y) in memory.draw(6, source) for n in y]
        assert len(set(drawn)) == len(drawn) == 6
        for sample in drawn:
            hits[sample] += 1
    expected = 1000 * 6 / 20
    assert all(abs(count - expected) < 4 * (expected * 14 / 20) ** 0.5 for count in hits.values())
    assert sorted(contents(memory)) == sorted(hits)
    assert len(contents(memory)) == 20


def test_a_limit_takes_from_one_task_only_and_by_chance() -> None:
    memory = memory_of(1, numbers(100, 106), memory_of(0, numbers(0, 10)))
    source, hits = generator(4), torch.zeros(10)
    for _ in range(400):
        left = contents(memory.limit(0, 4, source))
        assert [n for task, n in left if task == 1] == list(range(100, 106))
        own = [n for task, n in left if task == 0]
        assert len(set(own)) == len(own) == 4
        hits[own] += 1
    assert (hits - 160).abs().max() < 4 * (160 * 0.6) ** 0.5
    assert memory.limit(0, 99, source).sizes == memory.sizes == {0: 10, 1: 6}
    assert memory.limit(0, 0, source).sizes == {1: 6}


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: Pair(x, y),
        lambda x, y: {"x": x, "more": {"y": y, "both": (x + 1, y + 1)}, "scale": torch.tensor(2.0), "name": "a"},
        lambda x, y: OrderedDict(x=x, y=y, weights=torch.arange(4.0).repeat(50)),
        lambda x, y: x,
    ],
)
def test_a_batch_of_any_make_comes_back_as_it_was(make: Any) -> None:
    loader = [make(x, y) for x, y in numbers(0, 20, 5)]
    memory = memory_of(0, loader)
    ((task, batch),) = memory.draw(20, generator())
    expected = make(torch.arange(20.0).double().unsqueeze(1), torch.arange(20))
    assert task == 0
    assert type(batch) is type(expected)
    assert_same(batch, expected)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for part, another in zip(one, other, strict=True):
            assert_same(part, another)
    else:
        assert one == other


def test_samples_of_several_shapes_stay_apart() -> None:
    loader = [{"words": torch.full((3, length), length), "y": torch.full((3,), length)} for length in (4, 6, 4)]
    memory = memory_of(5, loader)
    drawn = memory.draw(9, generator())
    assert memory.sizes == {5: 9}
    assert [(task, batch["words"].shape) for task, batch in drawn] == [(5, (6, 4)), (5, (3, 6))]
    assert all(bool((batch["words"] == batch["y"][:, None]).all()) for _, batch in drawn)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ((torch.zeros(2), ["a", "b"]), (torch.zeros(2), ["c", "d"])),
        ((torch.zeros(2), torch.tensor(1.0)), (torch.zeros(2), torch.tensor(2.0))),
        ({"x": torch.zeros(2)}, {"x": torch.zeros(2), "y": torch.zeros(2)}),
        (["a"], ["a"]),
    ],
    ids=["strings", "numbers", "keys", "no tensors"],
)
def test_what_cannot_be_kept_is_refused(first: Any, other: Any) -> None:
    with pytest.raises(CuberError, match="a replay memory keeps tensors with a row for each sample"):
        check_alike(first, other)
    with pytest.raises(CuberError, match="a replay memory keeps tensors with a row for each sample"):
        Reservoir(5, generator()).read([first, other])


def test_a_memory_survives_a_file_in_a_few_tensors() -> None:
    loader = [{"x": x, "y": y, "scale": torch.tensor(3.0)} for x, y in numbers(0, 300)]
    memory = memory_of(1, numbers(0, 20), memory_of(0, loader))
    file = io.BytesIO()
    torch.save(memory.to_plain(), file)
    file.seek(0)
    twin = EpisodicMemory.from_plain(torch.load(file, weights_only=True))
    assert twin.sizes == memory.sizes == {0: 300, 1: 20}
    assert nbytes(twin) == nbytes(memory)
    for (task, ours), (other, theirs) in zip(memory.draw(9, generator()), twin.draw(9, generator()), strict=True):
        assert task == other
        assert_same(ours, theirs)


def test_bytes_are_those_of_codes_tables_labels_and_constants() -> None:
    images = [(torch.randint(256, (50, 1, 8, 8)) / 255, torch.arange(50) % 3, torch.zeros(7)) for _ in range(4)]
    assert nbytes(memory_of(0, images)) == 200 * 64 + 256 * 4 + 200 + 3 * 8 + 7 * 4


def test_a_mixture_is_one_batch_of_all_tasks_where_shapes_allow() -> None:
    memory = memory_of(2, numbers(100, 105), memory_of(0, numbers(0, 5)))
    x, y, tasks = mixture(memory.draw(10, generator()))  # type: ignore[misc]
    assert torch.equal(x.flatten().long(), y)
    assert torch.equal(tasks, 2 * (y >= 100))
    assert mixture([(0, (torch.zeros(2, 3), torch.zeros(2))), (1, (torch.zeros(2, 4), torch.zeros(2)))]) is None
    assert mixture([(0, (torch.zeros(2, 3), torch.zeros(2))), (1, (torch.zeros(2, 3).half(), torch.zeros(2)))]) is None
    assert mixture([(0, {"x": torch.zeros(2)})]) is None
    assert mixture([(0, (torch.zeros(2), "a"))]) is None
