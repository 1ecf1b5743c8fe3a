"""Experiments: a benchmark, a method and a seed, and how to run them."""

from cuber.experiments.experiment import Experiment, run
from cuber.experiments.presets import BENCHMARKS, Benchmark

__all__ = ["BENCHMARKS", "Benchmark", "Experiment", "run"]
