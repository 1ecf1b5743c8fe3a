"""``config.toml``: all values that decide the result of a run, and the machine that it ran on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuber.core.settings import short
from cuber.errors import CuberError
from cuber.runs import schema
from cuber.runs.files import plain, read_toml

CONFIG = "config.toml"
MOST_SHOWN = 6
"""Differences listed in one message."""

Config = Mapping[str, Mapping[str, Any]]


def read_config(directory: Path) -> dict[str, dict[str, Any]]:
    """Read the tables of ``directory/config.toml``; raise a CuberError if there are none."""
    path = directory / CONFIG
    try:
        config = read_toml(path)
        if not config:
            raise ValueError("it is empty")
        schema.CONFIG(config, "")
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise CuberError(
            f"{path} is damaged, or not the configuration of a run ({reason}): put it right, or start over with --fresh"
        ) from error
    experiment = config.get("experiment", {})
    if "method" in experiment:
        experiment["method"] = schema.EARLIER_METHODS.get(experiment["method"], experiment["method"])
    return config


def ready_for_toml(config: Config) -> dict[str, dict[str, Any]]:
    """Convert values to those of TOML, which has no None."""
    return plain(config, missing="none")


def differences(before: Config, now: Config) -> dict[str, str]:
    """Return name -> sentence for each value that differs.

    >>> differences({"training": {"lr": 0.1}}, {"training": {"lr": 0.2}, "settings": {}})
    {'training.lr': 'training.lr was 0.1 and is now 0.2'}
    """
    old, new = (
        {f"{table}.{key}": value for table, part in config.items() for key, value in part.items()}
        for config in (before, now)
    )

    def shown(values: Mapping[str, Any], name: str) -> str:
        return short(values[name]) if name in values else "not there"

    return {
        name: f"{name} was {shown(old, name)} and is now {shown(new, name)}"
        for name in {**old, **new}
        if name not in old or name not in new or old[name] != new[name]
    }


def decides(name: str) -> bool:
    """Return whether a value decides the result but for its last bits: not the machine, and not the device."""
    return not name.startswith("machine.") and name != "experiment.device"


def listed(sentences: list[str]) -> str:
    """Join sentences, shortened after the first few.

    >>> listed([f"{name} changed" for name in "abcdefgh"])
    'a changed; b changed; c changed; d changed; e changed; f changed; and 2 more'
    """
    more = len(sentences) - MOST_SHOWN
    return "; ".join(sentences[:MOST_SHOWN] + ([f"and {more} more"] if more > 0 else []))
