"""Experiments: a benchmark, a method and a seed, and how to run them."""

from cuber.experiments.benchmark import Benchmark
from cuber.experiments.config import Experiment
from cuber.experiments.presets import BENCHMARKS
from cuber.experiments.run import run

__all__ = ["BENCHMARKS", "Benchmark", "Experiment", "run"]
