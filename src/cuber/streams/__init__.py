"""Tasks, streams of tasks, and the benchmark streams."""

from cuber.streams.builders import stream_by_classes, stream_by_domains
from cuber.streams.digits import overlap_digits, permuted_digits, split_digits
from cuber.streams.loaders import FixedLoader, JointSplit, ShuffledLoader
from cuber.streams.paper_streams import (
    five_datasets,
    overlap_cifar100,
    overlap_fashion,
    permuted_mnist,
    split_cifar100,
    split_miniimagenet,
)
from cuber.streams.splits import DatasetSplit, ImageSplit, Split, TensorSplit, Transform
from cuber.streams.task import Stream, Task

__all__ = [
    "DatasetSplit",
    "FixedLoader",
    "ImageSplit",
    "JointSplit",
    "ShuffledLoader",
    "Split",
    "Stream",
    "Task",
    "TensorSplit",
    "Transform",
    "five_datasets",
    "overlap_cifar100",
    "overlap_digits",
    "overlap_fashion",
    "permuted_digits",
    "permuted_mnist",
    "split_cifar100",
    "split_digits",
    "split_miniimagenet",
    "stream_by_classes",
    "stream_by_domains",
]
