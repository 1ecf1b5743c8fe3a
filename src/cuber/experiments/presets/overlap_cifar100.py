"""OL-CIFAR100 as the paper runs it: like Split CIFAR-100 in all but the classes of the tasks."""

from __future__ import annotations

from cuber.experiments.benchmark import AGREED, Benchmark
from cuber.experiments.presets.split_cifar100 import SETTINGS, TRAINING, alexnet
from cuber.experiments.presets.table import BATCH_NORM
from cuber.streams import overlap_cifar100

OVERLAP_CIFAR100 = Benchmark(
    name="overlap-cifar100",
    help="half of CIFAR-100 in 7 tasks of 10 classes that partly overlap, a head each",
    stream=overlap_cifar100,
    network=alexnet,
    training=TRAINING,
    settings=SETTINGS,
    for_all_methods=BATCH_NORM,
    datasets=("cifar-100",),
    protocols=AGREED,
)
