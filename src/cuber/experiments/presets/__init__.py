"""The benchmarks by name, one file per family; the first is what ``cuber run`` runs without a name."""

from cuber.experiments.benchmark import Benchmark
from cuber.experiments.presets.digits import OVERLAP_DIGITS, PERMUTED_DIGITS, SPLIT_DIGITS
from cuber.experiments.presets.permuted_mnist import PERMUTED_MNIST

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark for benchmark in (OVERLAP_DIGITS, SPLIT_DIGITS, PERMUTED_DIGITS, PERMUTED_MNIST)
}

__all__ = ["BENCHMARKS"]
