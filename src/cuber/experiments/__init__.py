"""Experiments: a benchmark, a method and a seed, and how to run them."""

from cuber.experiments.experiment import Experiment, run
from cuber.experiments.outside import all_benchmarks, find_benchmark
from cuber.experiments.presets import BENCHMARKS, Benchmark

__all__ = ["BENCHMARKS", "Benchmark", "Experiment", "all_benchmarks", "find_benchmark", "run"]
