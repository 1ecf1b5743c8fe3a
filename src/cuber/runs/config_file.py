"""The configuration of a run as a file: every value that decides its result, and where it was made."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from cuber.errors import CuberError
from cuber.runs.files import write_atomically
from cuber.core.settings import short

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG = "config.toml"
MACHINE = "machine"
"""The table that decides no result: it may differ when a run goes on."""
RECENT = ("training.loss", "experiment.architecture", "experiment.contents")
"""What runs did not record that an earlier version began; they may go on all the same."""
ALWAYS = {"precision": "float32", "compile": False}
"""Of the training: what all runs did before there was a choice, and so did not record."""
MOST_SHOWN = 6
"""Differences, in a sentence that somebody is to read."""

Config = Mapping[str, Mapping[str, Any]]


def read_config(directory: Path) -> dict[str, dict[str, Any]]:
    """The configuration of a run, table by table; a sentence where there is none."""
    path = directory / CONFIG
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
        for name, table in config.items():
            if not isinstance(table, dict):
                raise ValueError(f"'{name}' is no table")
        if not config:
            raise ValueError("it is empty")
        if "training" in config:
            config["training"] = {**ALWAYS, **config["training"]}
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise CuberError(
            f"{path} is damaged, or not the configuration of a run ({reason}): put it right, or start over with --fresh"
        ) from error
    return config


def write_config(directory: Path, config: dict[str, dict[str, Any]]) -> None:
    """Write it, all of it or nothing; of what ``ready_for_toml`` has made."""
    write_atomically(directory / CONFIG, tomli_w.dumps(config))


def ready_for_toml(config: Config) -> dict[str, dict[str, Any]]:
    """The same configuration in what TOML can have, which knows no None."""
    return {table: {key: _ready(value) for key, value in part.items()} for table, part in config.items()}


def differences(before: Config, now: Config) -> dict[str, str]:
    """By the name of a value, how it has changed.

    >>> differences({"training": {"lr": 0.1}}, {"training": {"lr": 0.2}, "settings": {}})
    {'training.lr': 'training.lr was 0.1 and is now 0.2'}
    """
    was, is_now = (
        {f"{table}.{key}": value for table, part in config.items() for key, value in part.items()}
        for config in (before, now)
    )
    return {
        name: f"{name} was {_shown(was, name)} and is now {_shown(is_now, name)}"
        for name in {**was, **is_now}
        if name not in was or name not in is_now or was[name] != is_now[name]
    }


def decides(name: str, before: Config) -> bool:
    """Whether a run that had this configuration may not go on where the value of that name is another."""
    table, _, key = name.partition(".")
    return table != MACHINE and (name not in RECENT or key in before.get(table, {}))


def listed(sentences: list[str]) -> str:
    """In one sentence, of which the first few are enough.

    >>> listed([f"{name} changed" for name in "abcdefgh"])
    'a changed; b changed; c changed; d changed; e changed; f changed; and 2 more'
    """
    more = len(sentences) - MOST_SHOWN
    return "; ".join(sentences[:MOST_SHOWN] + ([f"and {more} more"] if more > 0 else []))


def _shown(values: Mapping[str, Any], name: str) -> str:
    return short(values[name]) if name in values else "not there"


def _ready(value: Any) -> Any:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return {str(key): _ready(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_ready(part) for part in value]
    return value if isinstance(value, bool | int | float | str) else str(value)
