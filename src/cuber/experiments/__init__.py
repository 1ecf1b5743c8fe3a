"""Experiments: what one is made of, and running it."""

from cuber.experiments.benchmark import Benchmark
from cuber.experiments.config import Experiment
from cuber.experiments.presets import BENCHMARKS
from cuber.experiments.run import run

__all__ = ["BENCHMARKS", "Benchmark", "Experiment", "run"]
