"""A benchmark: a stream, the network that learns it, and the settings that both are usually run with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from cuber.streams import Stream
from cuber.training import TrainingConfig

Settings = Mapping[str, Mapping[str, Any]]
"""Method name -> its settings; "lr" among them is the method's own learning rate."""


@dataclass(frozen=True)
class Protocol:
    """One way of running a benchmark: what it changes of the benchmark's training, settings and stream."""

    training: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """What ``cuber run NAME`` runs; enter one in ``cuber.experiments.presets`` and the command line knows it."""

    name: str
    help: str
    stream: Callable[..., Stream]
    """Seed -> stream; takes ``data_dir`` too where there are ``datasets``, and what ``options`` names."""
    network: Callable[[Stream], nn.Module]
    training: TrainingConfig
    protocols: Mapping[str, Protocol]
    """By name; the first is the usual one."""
    settings: Settings = field(default_factory=dict)
    """What differs from the methods' own defaults; methods that are yet to come may be named too."""
    for_all_methods: Mapping[str, Any] = field(default_factory=dict)
    """The same for every method, those of other packages too."""
    threads: int | None = None
    """For torch; None: as many as it likes."""
    datasets: tuple[str, ...] = ()
    """Names of what it reads from the data directory."""
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """What may be chosen about its stream, and the values that there are."""


AGREED: Mapping[str, Protocol] = {"paper": Protocol(), "code": Protocol()}
"""For benchmarks of the paper whose text and published code say the same."""
