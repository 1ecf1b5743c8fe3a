"""All benchmarks by name; the first is the default of ``cuber run``."""

from cuber.experiments.benchmark import Benchmark
from cuber.experiments.presets import digit_benchmarks, paper_benchmarks

PAPER_NAMES = tuple(benchmark.name for benchmark in paper_benchmarks.ALL)
"""Benchmarks of the paper."""

BENCHMARKS: dict[str, Benchmark] = {one.name: one for one in (*digit_benchmarks.ALL, *paper_benchmarks.ALL)}

__all__ = ["BENCHMARKS", "PAPER_NAMES"]
