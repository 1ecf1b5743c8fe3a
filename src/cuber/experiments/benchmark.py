"""A benchmark: a stream, its network, and the settings of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from cuber.streams import Stream
from cuber.training import TrainingConfig

Settings = Mapping[str, Mapping[str, Any]]
"""Method name -> its settings; "lr" is the method's own learning rate."""


@dataclass(frozen=True)
class Protocol:
    """Changes to the training, settings and stream options of a benchmark."""

    training: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """What ``cuber run NAME`` runs; entries of ``cuber.experiments.presets`` are known to the command line."""

    name: str
    help: str
    stream: Callable[..., Stream]
    """Makes the stream from a seed, ``data_dir`` if there are ``datasets``, and the ``options``."""
    network: Callable[[Stream], nn.Module]
    training: TrainingConfig
    protocols: Mapping[str, Protocol]
    """By name; the first is the default."""
    settings: Settings = field(default_factory=dict)
    """Differences from the defaults of the methods; methods that do not exist yet may be named."""
    for_all_methods: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every method, including those of other packages."""
    threads: int | None = None
    """Threads for torch; None: its default."""
    datasets: tuple[str, ...] = ()
    """Names of the datasets it reads from the data directory."""
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Options of the stream, with their allowed values."""
