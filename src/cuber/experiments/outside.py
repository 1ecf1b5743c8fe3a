"""Benchmarks by name: those of this package, and those of other packages by entry points in ``cuber.benchmarks``."""

from __future__ import annotations

from typing import Any

from cuber.core.plugins import Plugins
from cuber.experiments.presets import BENCHMARKS, Benchmark
from cuber.training import TrainingConfig


def _check(name: str, loaded: Any) -> str | None:
    if not isinstance(loaded, Benchmark):
        return "is not a cuber.experiments.Benchmark"
    if loaded.name != name:
        return f"has the name '{loaded.name}': give it that of its entry point"
    if not loaded.protocols:
        return "has no protocol"
    for field in ("stream", "network", "training"):
        value = getattr(loaded, field)
        if not (isinstance(value, TrainingConfig) if field == "training" else callable(value)):
            return f"has a {field} of type {type(value).__name__}"
    return None


OUTSIDE = Plugins("benchmark", BENCHMARKS, _check)
"""The benchmarks of other packages."""


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name, of this package or another.

    Raises:
        CuberError: no package has a benchmark of that name.
    """
    benchmark: Benchmark = BENCHMARKS[name] if name in BENCHMARKS else OUTSIDE.load(name)
    return benchmark


def all_benchmarks() -> dict[str, Benchmark]:
    """Return all benchmarks by name, with a warning for each of another package that cannot be loaded."""
    return {**BENCHMARKS, **OUTSIDE.load_all()}
