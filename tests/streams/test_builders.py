"""Streams of custom images."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from cuber import CuberError, datasets
from cuber.streams import stream_by_classes, stream_by_domains
from tests.datasets import files
from tests.streams.paper import check_no_leak, check_rows, classes_of


def made(classes: int = 5, per_class: int = 10, seed: int = 0, names: str = "pqrst") -> datasets.ImageDataset:
    images = files.pictures(classes * per_class, 8, 8, 3, seed=seed)
    return datasets.read_items([(image, names[k % classes]) for k, image in enumerate(images)], side=8, name="made")


def test_by_classes() -> None:
    dataset = made()
    stream = stream_by_classes(dataset, 2, held_out=0.25)
    assert [task.name for task in stream] == ["p, q", "r, s", "t"]
    assert [task.classes for task in stream] == [2, 2, 1]
    assert [classes_of(task.train, dataset.train_labels) for task in stream] == [[0, 1], [2, 3], [4]]
    check_rows(stream)
    check_no_leak(stream)
    assert not stream.shared_head
    assert stream_by_classes(dataset, 5)[0].validation is None
    orders = {tuple(t.name for t in stream_by_classes(dataset, 1, shuffle=True, seed=seed)) for seed in range(3)}
    assert len(orders) == 3
    with pytest.raises(CuberError, match="at least 1 class"):
        stream_by_classes(dataset, 0)


def test_by_domains() -> None:
    domains = {"first": made(seed=1), "second": made(seed=2)}
    stream = stream_by_domains(domains)
    assert stream.shared_head
    assert [task.name for task in stream] == ["first", "second"]
    for task, dataset in zip(stream, domains.values(), strict=True):
        assert np.shares_memory(task.train.images, dataset.train_images)
        assert task.train.transform.mean == dataset.mean
    other = {"first": made(seed=1), "second": made(seed=2, names="pqrsu")}
    with pytest.raises(CuberError, match="second has other classes than first, first 't'"):
        stream_by_domains(other)
    assert len(stream_by_domains(other, shared_head=False)) == 2
    with pytest.raises(CuberError, match="has no tasks"):
        stream_by_domains({})


def test_domains_with_classes_in_different_orders_have_the_same_labels() -> None:
    first, second = made(seed=1), made(seed=2)
    domains = {"first": first, "second": dataclasses.replace(second, classes=second.classes[::-1])}
    together, apart = stream_by_domains(domains), stream_by_domains(domains, shared_head=False)
    assert torch.equal(together[0].train.y, apart[0].train.y)
    assert torch.equal(together[1].train.y, 4 - apart[1].train.y)


def test_classes_of_one_name_are_kept_apart_or_refused() -> None:
    twice = dataclasses.replace(made(), classes=("p", "p", "q", "r", "s"))
    assert len(stream_by_domains({"one": twice, "two": twice})[0].train.y.unique()) == 5
    other = dataclasses.replace(made(), classes=("s", "r", "q", "p", "p"))
    with pytest.raises(CuberError, match="two: two classes have the same name"):
        stream_by_domains({"one": twice, "two": other})


def test_classes_without_training_images_are_one_sentence() -> None:
    dataset = made(2, names="pq")
    tested_only = dataclasses.replace(dataset, train_labels=np.zeros_like(dataset.train_labels))
    with pytest.raises(CuberError, match="task 'q': there are no training images of its classes"):
        stream_by_classes(tested_only, 1)
