"""A benchmark: a stream, the network that learns it, and the settings that both are usually run with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from cuber.streams import Stream
from cuber.training import Training


@dataclass(frozen=True)
class Benchmark:
    """What ``cuber run NAME`` runs; enter one in ``cuber.experiments.presets`` and the command line knows it."""

    name: str
    help: str
    stream: Callable[[int], Stream]
    """Seed -> stream."""
    network: Callable[[Stream], nn.Module]
    training: Training
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Method name -> settings that differ from the method's own defaults."""
    threads: int | None = None
    """For torch; None: as many as it likes."""
