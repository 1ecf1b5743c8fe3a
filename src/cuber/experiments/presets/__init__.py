"""The benchmarks by name, one file per family; the first is what ``cuber run`` runs without a name."""

from cuber.experiments.benchmark import Benchmark
from cuber.experiments.presets.digits import OVERLAP_DIGITS, PERMUTED_DIGITS, SPLIT_DIGITS
from cuber.experiments.presets.five_datasets import FIVE_DATASETS
from cuber.experiments.presets.overlap_cifar100 import OVERLAP_CIFAR100
from cuber.experiments.presets.permuted_mnist import PERMUTED_MNIST
from cuber.experiments.presets.split_cifar100 import SPLIT_CIFAR100
from cuber.experiments.presets.split_miniimagenet import SPLIT_MINIIMAGENET

DIGITS = (OVERLAP_DIGITS, SPLIT_DIGITS, PERMUTED_DIGITS)
PAPER = (PERMUTED_MNIST, SPLIT_CIFAR100, OVERLAP_CIFAR100, FIVE_DATASETS, SPLIT_MINIIMAGENET)

PAPER_NAMES = tuple(benchmark.name for benchmark in PAPER)
"""Those that the paper has figures for."""

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in (*DIGITS, *PAPER)}

__all__ = ["BENCHMARKS", "PAPER_NAMES"]
