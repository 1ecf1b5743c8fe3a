"""Task and Stream: accepted data, and errors for other data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from cuber import CuberError, Stream, Task
from cuber.streams import DatasetSplit, FixedLoader, TensorSplit

X, Y = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
GOOD = (X, Y)


class Pairs(Dataset):
    """A Dataset that is not a TensorDataset."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


def only_batch(split):
    return next(iter(FixedLoader(split, 100)))


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        (X.double().numpy(), Y.double().numpy()),
        (X.tolist(), Y.tolist()),
        (X.numpy()[::-1][::-1], Y.int()),
        TensorDataset(X, Y),
        Pairs([(x, int(y)) for x, y in zip(X, Y, strict=True)]),
        Pairs([(x.double().numpy(), y) for x, y in zip(X, Y, strict=True)]),
    ],
)
def test_every_kind_of_data_gives_the_same_batches(data):
    task = Task("a", data, data, data, classes=3)
    for split in (task.train, task.test, task.validation):
        x, y = only_batch(split)
        assert len(split) == 6
        assert x.dtype == torch.float32
        assert y.dtype == torch.long
        torch.testing.assert_close(x, X)
        assert torch.equal(y, Y)


def test_tensor_datasets_become_tensor_parts_and_others_do_not():
    task = Task("a", TensorDataset(X, Y), Pairs([(X[0], 0)]), classes=3)
    assert isinstance(task.train, TensorSplit)
    assert isinstance(task.test, DatasetSplit)


def test_a_task_of_the_split_of_another_one_leaves_it_alone():
    first = Task("a", Pairs([(X[0], 0)]), GOOD, classes=3)
    Task("b", first.train, GOOD, classes=8)
    assert first.train.classes == 3


def test_negative_strides_and_read_only_arrays_are_taken():
    backwards = X.numpy()[::-1]
    frozen = X.numpy().copy()
    frozen.setflags(write=False)
    task = Task("a", (backwards, Y), (frozen, Y))
    assert torch.equal(task.train.x, X.flip(0))
    assert torch.equal(task.test.x, X)


def test_a_tensor_keeps_the_type_that_it_was_given():
    assert Task("a", (X.double(), Y), (X.double(), Y)).train.x.dtype == torch.float64
    assert Task("a", (X.long(), Y), (X.long(), Y)).train.x.dtype == torch.int64


def test_bytes_are_kept_and_reach_the_network_from_0_to_1():
    images = torch.arange(6, dtype=torch.uint8).reshape(6, 1) * 51
    for data in ((images, Y), (images.numpy(), Y), Pairs(list(zip(images, Y.tolist(), strict=True)))):
        task = Task("a", data, data, classes=3)
        torch.testing.assert_close(only_batch(task.train)[0], torch.arange(6.0).reshape(6, 1) / 5)
    assert Task("a", (images, Y), (images, Y)).train.x.dtype == torch.uint8


def test_classes_are_counted_where_they_are_not_given():
    assert Task("a", GOOD, (X, torch.tensor([0, 0, 0, 0, 0, 4]))).classes == 5


NAN = X.clone()
NAN[2, 1] = float("nan")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"train": (X, Y[:5])}, "task 'a', training split: 6 inputs but 5 labels"),
        ({"test": (X[:0], Y[:0])}, "test split: there are no samples in it"),
        ({"train": (NAN, Y)}, "training split: some inputs are NaN or infinite"),
        ({"validation": (X / 0, Y)}, "validation split: some inputs are NaN or infinite"),
        ({"train": (X, Y + 1)}, "training split: label 3 is not one of the 3 classes 0 to 2"),
        ({"test": (X, Y - 1)}, "test split: label -1 is not one of the 3 classes"),
        ({"train": (X, Y + 0.5)}, "labels must be whole numbers, not 0.5"),
        ({"train": (X, X[:, 0] * float("nan"))}, "labels must be whole numbers, not nan"),
        ({"train": (X, torch.eye(6))}, r"labels must be one whole number per sample, not of shape \(6, 6\)"),
        ({"train": (X, np.array(list("abcdef")))}, "the labels are not an array of numbers"),
        ({"train": ([[1, 2], [3]], [0, 1])}, "the inputs are not an array of numbers"),
        ({"train": (X > 0.5, Y)}, "inputs of type bool are not numbers"),
        ({"test": (X[:, :2], Y)}, r"test split: its inputs are of shape \(2,\), others of \(3,\)"),
        ({"train": X}, r"give \(x, y\) or a torch Dataset, not a Tensor"),
        ({"train": Endless()}, "the Dataset has no length"),
        ({"train": Pairs([])}, "there are no samples in it"),
        ({"classes": 0}, "classes must be a whole number of at least 1, not 0"),
        ({"classes": 2.0}, "classes must be a whole number of at least 1, not 2.0"),
        ({"train": Pairs([(X[0], 0)]), "classes": None}, "give Task"),
    ],
)
def test_bad_data_is_answered_with_a_sentence(arguments, sentence):
    with pytest.raises(CuberError, match=sentence):
        Task(**{"name": "a", "train": GOOD, "test": GOOD, "classes": 3, **arguments})


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([(X[0], 7)], "training split: label 7 is not one of the 3 classes"),
        ([(X[0] / 0, 1)], "some inputs are NaN or infinite"),
        ([X[0]], r"yields a Tensor where \(x, label\) is expected"),
        ([(X[0], 1), (X[0, :2], 1)], "samples do not make a batch"),
        ([(object(), 1)], "samples do not make a batch"),
    ],
)
def test_a_dataset_is_checked_when_its_batches_come(pairs, sentence):
    task = Task("a", Pairs(pairs), GOOD, classes=3)
    with pytest.raises(CuberError, match=sentence):
        only_batch(task.train)


@pytest.mark.parametrize("data", [(X, Y), Pairs([(x, int(y)) for x, y in zip(X, Y, strict=True)])])
def test_splitting_loses_and_doubles_nothing_and_follows_the_seed(data):
    task = Task("a", data, GOOD, classes=3)
    one, same, other = (task.split(1 / 3, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert len(one.validation) == 2
    both = torch.cat([only_batch(one.train)[0], only_batch(one.validation)[0]])
    assert sorted(both.tolist()) == sorted(X.tolist())
    assert torch.equal(only_batch(one.validation)[0], only_batch(same.validation)[0])
    assert not torch.equal(only_batch(one.validation)[0], only_batch(other.validation)[0])
    assert task.validation is None


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_fractions_that_hold_out_nothing_or_everything_are_refused(fraction):
    with pytest.raises(CuberError, match="between 0 and 1"):
        Task("a", GOOD, GOOD).split(fraction, torch.Generator())


def test_too_few_samples_to_split():
    with pytest.raises(CuberError, match="1 training samples are too few"):
        Task("a", (X[:1], Y[:1]), GOOD).split(0.5, torch.Generator())


def test_a_stream_splits_where_there_is_nothing_held_out_yet():
    stream = Stream("s", [Task("a", GOOD, GOOD), Task("b", GOOD, GOOD, GOOD)]).split(0.5, seed=3)
    assert [len(task.train) for task in stream] == [3, 6]
    assert [len(task.validation) for task in stream] == [3, 6]


def test_a_stream_is_a_sequence_of_tasks():
    stream = Stream("s", [Task(name, GOOD, GOOD) for name in "abc"], shared_head=True)
    assert [task.name for task in stream] == ["a", "b", "c"]
    assert len(stream.first(2)) == 2
    assert stream.first(2).shared_head
    assert stream[1].name == "b"
    assert "3 tasks, one shared head" in repr(stream)


def test_a_stream_shrinks_and_says_so():
    whole = Stream("s", [Task("a", GOOD, GOOD, GOOD), Task("b", GOOD, GOOD)], notes=["as found"])
    small = whole.shrink(train=3, test=2)
    assert [(len(task.train), len(task.test)) for task in small] == [(3, 2), (3, 2)]
    assert len(small[0].validation) == 3  # in proportion
    assert small.notes == ("as found", "only 3 training samples per task", "only 2 test samples per task")
    assert whole.shrink(train=1, test=1).notes[1:] == ("only 1 training sample per task", "only 1 test sample per task")
    assert small.first(1).notes[-1] == "only 1 of 2 tasks"
    assert whole.first(2).shrink(train=6).notes == whole.split(0.5).notes == ("as found",)
    assert whole.shrink(3, seed=1)[0].train.x.tolist() == whole.shrink(3, seed=1)[0].train.x.tolist()
    with pytest.raises(CuberError, match="at least 1 test sample, not 0"):
        whole.shrink(test=0)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Stream("s", []), "stream 's' has no tasks"),
        (lambda: Stream("s", [], metrics=None), "no setting of Stream 'metrics'; did you mean 'metric'"),
        (lambda: Task("a", GOOD, GOOD, clases=3), "no setting of Task 'clases'; did you mean 'classes'"),
        (lambda: Stream("s", [GOOD]), "made of cuber.Task, not of tuple"),
        (
            lambda: Stream("s", [Task("a", GOOD, GOOD), Task("b", GOOD, GOOD, classes=4)], shared_head=True),
            "task 'b' has 4 classes and 'a' has 3",
        ),
        (lambda: Stream("s", [Task("a", GOOD, GOOD)]).first(2), "s has 1 tasks: choose 1 to 1, not 2"),
        (lambda: Stream("s", [Task("a", GOOD, GOOD)]).first(0), "choose 1 to 1, not 0"),
    ],
)
def test_bad_streams_are_answered_with_a_sentence(build, sentence):
    with pytest.raises(CuberError, match=sentence):
        build()
