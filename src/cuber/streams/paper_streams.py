"""The benchmark streams of the paper: Permuted MNIST, CIFAR-100, 5-Datasets and Split miniImageNet.

And overlapping Fashion-MNIST, which is ours: like overlap-digits, with more difficult images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from cuber.datasets import ImageDataset, load
from cuber.datasets.source import Location
from cuber.errors import unknown
from cuber.streams.builders import class_stream, make_task, overlapping_stream
from cuber.streams.splits import ImageSplit, Transform
from cuber.streams.task import Stream, Task

OVERLAPPING = (0, 5, 10, 20, 25, 30, 40)
"""First class of each task of OL-CIFAR100."""
IMAGES = ("same", "other")
"""Training images of classes that tasks of OL-CIFAR100 share: the same in each task, as in the paper, or others."""
SIDE = 32
"""Image size of 5-Datasets."""
ORDERS = {
    "code": ("cifar-10", "mnist", "svhn", "fashion-mnist", "notmnist"),
    "paper": ("cifar-10", "mnist", "svhn", "notmnist", "fashion-mnist"),
}
"""Orders of 5-Datasets: that of the published code and that of the paper's text."""


def permuted_mnist(seed: int = 0, *, tasks: int = 10, data_dir: Location | None = None) -> Stream:
    """Return tasks of the ten digits with one head, each with its own permutation of the pixels.

    The first task is permuted too, as in GPM's published code. The same tenth of the training images is held out for
    validation in all tasks.

    Args:
        seed: Determines the permutations and the images held out.
        tasks: Number of tasks.
        data_dir: Where the downloads are (default: that of ``cuber data get``).

    >>> permuted_mnist(tasks=3)[2]  # after `cuber data get mnist`  # doctest: +SKIP
    Task('permutation 2': 54000 training, 6000 validation, 10000 test samples, 10 classes)
    """
    dataset = load("mnist", data_dir)
    generator = torch.Generator().manual_seed(seed)
    count, pixels = len(dataset.train_labels), dataset.train_images[0].size
    held_out = round(0.1 * count)
    rows = torch.randperm(count, generator=generator).split([held_out, count - held_out])
    labels, test_labels = (torch.from_numpy(y).long() for y in (dataset.train_labels, dataset.test_labels))
    stream = []
    for position in range(tasks):
        transform = Transform(dataset.mean, dataset.std, order=torch.randperm(pixels, generator=generator))
        validation, train = (ImageSplit(dataset.train_images, some, labels[some], transform) for some in rows)
        test = ImageSplit(dataset.test_images, torch.arange(len(test_labels)), test_labels, transform)
        stream.append(Task(f"permutation {position}", train, test, validation, classes=len(dataset.classes)))
    return Stream("permuted-mnist", stream, shared_head=True, notes=dataset.notes)


def split_cifar100(seed: int = 0, *, data_dir: Location | None = None) -> Stream:
    """Return ten tasks of ten classes each, in the order of the dataset.

    Args:
        seed: Determines the 5 % of the training images that are held out for validation.
        data_dir: Where the downloads are (default: that of ``cuber data get``).

    >>> len(split_cifar100())  # after `cuber data get cifar-100`  # doctest: +SKIP
    10
    """
    dataset = load("cifar-100", data_dir)
    return class_stream("split-cifar100", dataset, _tens(range(0, 100, 10))).split(0.05, seed)


def overlap_cifar100(seed: int = 0, *, images: str = "same", data_dir: Location | None = None) -> Stream:
    """Return OL-CIFAR100: seven tasks of ten classes, some of which share five classes with the task before.

    In the paper, tasks have the same training images of a class that they share. With ``images="other"`` each task
    has half of the images of all its classes, and no image is in two tasks.

    Args:
        seed: Determines the 5 % held out for validation and, with ``images="other"``, which task has which images.
        images: ``"same"`` or ``"other"``.
        data_dir: Where the downloads are (default: that of ``cuber data get``).

    >>> len(overlap_cifar100(images="other"))  # after `cuber data get cifar-100`  # doctest: +SKIP
    7
    """
    if images not in IMAGES:
        raise unknown("choice of images", images, IMAGES)
    dataset, groups, generator = load("cifar-100", data_dir), _tens(OVERLAPPING), torch.Generator().manual_seed(seed)
    if images == "same":
        stream = class_stream("overlap-cifar100", dataset, groups)
    else:
        stream = overlapping_stream("overlap-cifar100", dataset, groups, generator)
        stream = stream.with_notes("other images of a shared class in each task")
    return stream.split(0.05, generator)


def _tens(starts: Iterable[int]) -> list[tuple[str, Sequence[int]]]:
    return [(f"classes {start}-{start + 9}", range(start, start + 10)) for start in starts]


def overlap_fashion(
    seed: int = 0, *, train_per_class: int = 30, validation_per_class: int = 100, data_dir: Location | None = None
) -> Stream:
    """Return five tasks of four classes of Fashion-MNIST each, two of them shared with the task before.

    As in overlap-digits, tasks have different training images of a shared class, and few of each.

    Args:
        seed: Determines which images are in which task and split.
        train_per_class: Training images of each class in each task.
        validation_per_class: The same for validation; 0: no validation data.
        data_dir: Where the downloads are (default: that of ``cuber data get``).

    >>> overlap_fashion()[1]  # after `cuber data get fashion-mnist`  # doctest: +SKIP
    Task('classes 2-5': 120 training, 400 validation, 4000 test samples, 4 classes)
    """
    classes = [[(start + step) % 10 for step in range(4)] for start in range(0, 10, 2)]
    groups = [(f"classes {group[0]}-{group[-1]}", group) for group in classes]
    return overlapping_stream(
        "overlap-fashion",
        load("fashion-mnist", data_dir),
        groups,
        torch.Generator().manual_seed(seed),
        train_per_class=train_per_class,
        validation_per_class=validation_per_class,
    )


def split_miniimagenet(seed: int = 0, *, data_dir: Location | None = None) -> Stream:
    """Return twenty tasks of five classes each, in random order.

    Args:
        seed: Determines the order of the classes and the 2 % of the training images held out for validation.
        data_dir: Where the downloads are (default: that of ``cuber data get``).

    >>> len(split_miniimagenet())  # needs its data: see `cuber data`  # doctest: +SKIP
    20
    """
    dataset = load("miniimagenet", data_dir)
    generator = torch.Generator().manual_seed(seed)
    groups = [group.tolist() for group in torch.randperm(len(dataset.classes), generator=generator).split(5)]
    named = [("classes " + ",".join(map(str, group)), group) for group in groups]
    return class_stream("split-miniimagenet", dataset, named).split(0.02, generator)


def five_datasets(
    seed: int = 0, *, order: str = "code", mnist_twice: bool = False, data_dir: Location | None = None
) -> Stream:
    """Return CIFAR-10, MNIST, SVHN, Fashion-MNIST and notMNIST as tasks of 32x32 images with three channels.

    Args:
        seed: Determines the 5 % of the training images that are held out for validation.
        order: ``"code"``, that of the published code, or ``"paper"``, that of the paper's text.
        mnist_twice: Replace Fashion-MNIST by MNIST, as the published code does with later versions of torchvision,
            where its own FashionMNIST downloads MNIST.
        data_dir: Where the downloads are (default: that of ``cuber data get``).

    >>> [task.name for task in five_datasets(order="paper")]  # see `cuber data`  # doctest: +SKIP
    ['cifar-10', 'mnist', 'svhn', 'notmnist', 'fashion-mnist']
    """
    if order not in ORDERS:
        raise unknown("order of 5-Datasets", order, ORDERS)
    tasks = []
    for name in ORDERS[order]:
        again = mnist_twice and name == "fashion-mnist"
        dataset = load("mnist" if again else name, data_dir)
        tasks.append(make_task("mnist again" if again else name, dataset, transform=padded_transform(dataset)))
    notes = ["MNIST in the place of Fashion-MNIST"] if mnist_twice else []
    return Stream("five-datasets", tasks, notes=notes).split(0.05, seed)


def padded_transform(dataset: ImageDataset) -> Transform:
    """Return the transform that pads images to 32x32 and repeats the channel of grayscale images three times."""
    padding = (SIDE - dataset.train_images.shape[1]) // 2
    channels = 3 if dataset.train_images.ndim == 3 else None
    return Transform(*dataset.padded_normalization(padding), padding, channels)
