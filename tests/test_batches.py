"""Counting, slicing and joining batches of any structure."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import torch

from cuber import CuberError
from cuber.core import batches

Pair = namedtuple("Pair", ["x", "y"])
X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)

MAKES: dict[str, Any] = {
    "tuple": (X, Y),
    "list": [X, Y],
    "tensor": X,
    "dictionary": {"x": X, "y": Y},
    "ordered dictionary": OrderedDict(x=X, y=Y),
    "named tuple": Pair(X, Y),
    "values in a list": (X, [0, 1, 2, 3, 4, 5]),
    "values in a tuple": {"x": X, "y": tuple("abcdef")},
    "nested": {"inputs": {"ids": X, "mask": X > 3}, "labels": [Y], "name": "six"},
}


@pytest.mark.parametrize("batch", MAKES.values(), ids=MAKES.keys())
def test_every_make_of_batch_has_a_size_and_a_beginning(batch: Any) -> None:
    assert batches.size(batch) == 6
    beginning = batches.first(batch, 4)
    assert batches.size(beginning) == 4
    tensors: list[torch.Tensor] = []
    batches.map_tensors(beginning, tensors.append)
    assert all(len(tensor) == 4 for tensor in tensors)
    assert torch.equal(tensors[0], X[:4])


def test_what_is_not_as_long_as_the_batch_is_left_whole() -> None:
    batch = batches.first((X, torch.ones(3), torch.tensor(2.0), "text"), 2)
    assert [len(part) for part in batch[:2]] == [2, 3]
    assert batch[2:] == (torch.tensor(2.0), "text")


def test_a_named_tuple_stays_one_and_values_without_tensors_stay_as_they_are() -> None:
    assert isinstance(batches.first(Pair(X, Y), 2), Pair)
    assert batches.size("text") == 1
    assert batches.map_tensors({"a": None, "b": 3}, lambda tensor: tensor) == {"a": None, "b": 3}


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1]), (6, [6]), (7, [6, 1]), (12, [6, 6]), (18, [6, 6, 6]), (99, [6, 6, 6])]
)
def test_taking_stops_at_the_number_asked_for_or_at_the_end(count: int, sizes: list[int]) -> None:
    assert [batches.size(batch) for batch in batches.take([(X, Y)] * 3, count)] == sizes


def test_no_more_is_asked_of_the_loader_than_needed() -> None:
    def loader() -> Any:
        yield X, Y
        yield X, Y
        raise AssertionError("a third batch was asked for")

    assert len(batches.take(loader(), 12)) == 2


def test_an_empty_loader_is_an_error_that_says_what_to_give() -> None:
    with pytest.raises(CuberError, match="yields no batch: give begin_task and end_task the task's training data"):
        batches.take([], 5)


def test_the_whole_batch_goes_to_the_device() -> None:
    moved = batches.to({"x": X, "rest": [Y, "text"]}, torch.device("meta"))
    assert moved["x"].device.type == moved["rest"][0].device.type == "meta"
    assert moved["rest"][1] == "text"


def test_small_batches_are_joined_up_to_a_number_of_bytes_and_in_order() -> None:
    one = X.nbytes + Y.nbytes
    together = batches.joined([(X, Y), (X + 1, Y), (X + 2, Y)], 2 * one)
    assert [batches.size(batch) for batch in together] == [12, 6]
    assert torch.equal(together[0][0], torch.cat([X, X + 1]))
    assert torch.equal(together[1][0], X + 2)
    assert [batches.size(batch) for batch in batches.joined([(X, Y)] * 3, one - 1)] == [6, 6, 6]


@pytest.mark.parametrize(
    "other",
    [
        {"x": X, "y": Y},
        X,
        Pair(X, Y),
        (X, "text"),
        (X, Y[:4]),
        (X, torch.tensor(1)),
        (X.double(), Y),
        (X.flatten(), Y),
        (),
    ],
    ids=lambda other: type(other).__name__,
)
def test_batches_of_another_make_or_kind_stay_as_they_are(other: Any) -> None:
    given = [(X, Y), other, (X, Y)]
    together = batches.joined(given, 10**6)
    assert len(together) == 3
    assert all(ours is theirs for ours, theirs in zip(together, given, strict=True))


def test_lists_stay_lists() -> None:
    assert isinstance(batches.joined([[X, Y], [X, Y]], 10**6)[0], list)


IMAGES = [torch.full((3, 4, 4), float(sample)) for sample in range(6)]


@pytest.mark.parametrize("targets", [list(range(6)), [{"box": torch.ones(2, 4)} for _ in range(6)], tuple("abcdef")])
def test_a_list_of_samples_is_cut_by_samples(targets: Any) -> None:
    batch = (IMAGES, targets)
    assert batches.size(batch) == 6
    images, kept = batches.first(batch, 2)
    assert [image.shape for image in images] == [(3, 4, 4)] * 2
    assert kept == targets[:2]
    assert type(kept) is type(targets)


def test_several_tensors_for_each_sample_are_cut_one_by_one() -> None:
    inputs, targets = batches.first(([X, X + 1], [Y, Y]), 2)
    assert [len(tensor) for tensor in (*inputs, *targets)] == [2, 2, 2, 2]
    inputs, targets = batches.first(([X[:2], X[2:4]], [Y[:2], Y[2:4]]), 1)
    assert [len(tensor) for tensor in (*inputs, *targets)] == [1, 1, 1, 1]


def test_a_batch_with_several_rows_for_a_sample_is_left_whole() -> None:
    views = torch.cat([X, X])
    assert [len(part) for part in batches.first((X, Y, views), 2)] == [6, 6, 12]
    assert [batches.size(batch) for batch in batches.take([(X, Y, views)] * 3, 7)] == [6, 6]


class Wrapping(MutableMapping):  # type: ignore[type-arg]
    """A custom mapping whose shallow copies share its data."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value

    def __delitem__(self, key: str) -> None:
        del self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


def test_the_batch_is_not_modified() -> None:
    batch = Wrapping({"x": X, "y": Y})
    assert batches.size(batch) == 6
    beginning = batches.first(batch, 2)
    assert isinstance(beginning, Wrapping)
    assert len(beginning["x"]) == len(beginning["y"]) == 2
    assert batch["x"] is X
    assert batch["y"] is Y
