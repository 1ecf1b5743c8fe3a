"""A grid of experiments: every combination of methods, seeds and settings, each in its own directory."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuber.core.settings import settings_of, short
from cuber.errors import CuberError
from cuber.experiments.experiment import Experiment
from cuber.runs.files import read_toml

MOST_SEEDS = 10_000
SEVERAL = ("benchmarks", "methods", "seeds")
KEYS = (*SEVERAL, *(name for name in Experiment.__dataclass_fields__ if f"{name}s" not in SEVERAL))
"""Keys of a grid file; a field of an experiment holds for all of its experiments."""


@dataclass(frozen=True)
class Cell:
    """One experiment of a grid and its directory."""

    experiment: Experiment
    directory: Path


def grid(
    out: str | os.PathLike[str],
    benchmarks: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[Any]] | None = None,
    **fixed: Any,
) -> list[Cell]:
    """Return every combination; each value of a setting is combined with the methods that have it.

    >>> [str(cell.directory) for cell in grid("runs", ["split-digits"], ["gpm", "trgp"], [3], {"eps1": [0.4, 0.5]})]
    ['runs/split-digits/gpm/seed-3', 'runs/split-digits/trgp-eps1=0.4/seed-3', 'runs/split-digits/trgp-eps1=0.5/seed-3']
    """
    swept = dict(settings or {})
    for what, values in {"benchmark": benchmarks, "method": methods, "seed": seeds, **swept}.items():
        for value, count in Counter(repr(v) if isinstance(v, list | dict) else v for v in values).items():
            if count > 1:  # two processes would share a directory
                raise CuberError(f"{what} {short(value)} is there {count} times: name it once")
    cells, used = [], set()
    for benchmark, method in itertools.product(benchmarks, methods):
        first = Experiment(benchmark, method, **fixed)
        own = [name for name in swept if name in settings_of(first.method_class)]
        used |= set(own)
        folder = Path(out) / "-".join([benchmark, *(f"{name}={value}" for name, value in first.options.items())])
        usual = first.protocol in (None, next(iter(first.preset.protocols)))
        variant = [method] if usual else [method, f"protocol={first.protocol}"]
        variant += [f"boundaries={first.boundaries}"] if first.boundaries else []
        for values in itertools.product(*(swept[name] for name in own)):
            chosen = dict(zip(own, values, strict=True))
            changes = [f"{key}={value}" for key, value in chosen.items() if len(swept[key]) > 1]
            name = "-".join([*variant, *changes]).replace(" ", "").replace(os.sep, "_")
            for seed in seeds:
                cells.append(Cell(replace(first, seed=seed, settings=chosen), folder / name / f"seed-{seed}"))
    if not cells:
        raise CuberError("a grid needs at least one benchmark, one method, one seed and one value of each setting")
    for name in swept.keys() - used:
        raise CuberError(f"none of the methods {', '.join(methods)} has a setting '{name}'")
    return cells


def read_grid(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> list[Cell]:
    """Read a grid from a TOML file: benchmarks, methods, seeds, a table of settings, and fields of all experiments.

    A list in the table of settings is a list of values to try; if the values are lists, write a list of lists.
    """
    try:
        given = read_toml(Path(path))
    except OSError as error:
        raise CuberError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CuberError(f"{path} is not TOML: {error}") from error
    for key in given.keys() - set(KEYS):
        raise CuberError(f"{path}: '{key}' is not a key of a grid file (known: {', '.join(KEYS)})")
    for key in SEVERAL:
        if key not in given:
            raise CuberError(f"{path} lacks '{key}'")
    settings = given.pop("settings", {})
    if not isinstance(settings, dict):
        raise CuberError(f"{path}: settings must be a table of names and values, not {short(settings)}")
    settings = {name: _several(value) for name, value in settings.items()}
    try:
        if isinstance(given["seeds"], str):
            given["seeds"] = numbers(given["seeds"])
        several = {key: _several(given.pop(key)) for key in SEVERAL}
        return grid(out, settings=settings, **several, **given)
    except CuberError as error:
        raise CuberError(f"{path}: {error}") from error


def numbers(text: str, what: str = "seed") -> list[int]:
    """Parse seeds, or numbers of tasks.

    >>> numbers("0-2,7")
    [0, 1, 2, 7]
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise CuberError(f"{what}s are given as 0-4 or 0,2,5, not '{text}'")
        first, last = (int(number[:20]) for number in (match[1], match[2] or match[1]))  # more digits are invalid
        if last < first:
            raise CuberError(f"'{part}' names no {what}: the first comes before the last, as in 0-4")
        if last - first >= MOST_SEEDS:
            raise CuberError(f"{short(part)} names more than {MOST_SEEDS} {what}s: choose some of them")
        found += range(first, last + 1)
    return found


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]
