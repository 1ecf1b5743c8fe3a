"""One experiment, described: which benchmark, which method, and what differs from their presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cuber.errors import CuberError, unknown
from cuber.experiments.benchmark import Benchmark
from cuber.experiments.presets import BENCHMARKS
from cuber.methods import METHODS, Method
from cuber.training import Training, check_seed


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a result; None: as the benchmark has it. Raises a sentence for what makes no sense."""

    benchmark: str = next(iter(BENCHMARKS))
    method: str = next(iter(METHODS))
    seed: int = 0
    tasks: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the method; they go before those of the benchmark."""
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.benchmark not in BENCHMARKS:
            raise unknown("benchmark", self.benchmark, BENCHMARKS)
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        check_seed(self.seed)
        if self.threads is not None and (not isinstance(self.threads, int) or self.threads < 1):
            raise CuberError(f"threads must be a whole number of at least 1, not {self.threads!r}")
        self.training()

    @property
    def preset(self) -> Benchmark:
        """The benchmark that its name stands for."""
        return BENCHMARKS[self.benchmark]

    @property
    def method_class(self) -> type[Method]:
        """The method that its name stands for."""
        return METHODS[self.method]

    def training(self) -> Training:
        """The benchmark's settings of the loop, with those given here in their place."""
        given = {"epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(self.preset.training, **changes)

    def method_settings(self) -> dict[str, Any]:
        """The benchmark's settings of the method, with those given here in their place."""
        return {**self.preset.settings.get(self.method, {}), **self.settings}
