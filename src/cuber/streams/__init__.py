"""Where tasks come from: ``Task`` and ``Stream``, and one file per family of benchmarks."""

from cuber.streams.batching import FixedLoader, ShuffledLoader
from cuber.streams.cifar100 import overlap_cifar100, split_cifar100
from cuber.streams.digits import overlap_digits, permuted_digits, split_digits
from cuber.streams.five_datasets import five_datasets
from cuber.streams.images import ImageSplit, Transform
from cuber.streams.joint import JointSplit
from cuber.streams.miniimagenet import split_miniimagenet
from cuber.streams.own import stream_by_classes, stream_by_domains, stream_by_files
from cuber.streams.permuted_mnist import permuted_mnist
from cuber.streams.splits import DatasetSplit, Split, TensorSplit
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
    "permuted_digits",
    "permuted_mnist",
    "split_cifar100",
    "split_digits",
    "split_miniimagenet",
    "stream_by_classes",
    "stream_by_domains",
    "stream_by_files",
]
