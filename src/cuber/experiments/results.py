"""Run directories, read: what was run, how far it got, what came out."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuber.errors import CuberError
from cuber.training import Result
from cuber.training.directory import CHECKPOINT, CONFIG, ERROR, LOG, read_config
from cuber.training.result import FILE_NAME as RESULT

FINISHED, INCOMPLETE, FAILED, DAMAGED = "finished", "incomplete", "failed", "damaged"

KINDS: Mapping[str, type] = {
    "benchmark": str,
    "method": str,
    "seed": int,
    "tasks": list,
    "settings": dict,
    "training": dict,
    "accuracy": list,
    "reshuffled": list,
    "regimes": list,
    "theory": list,
    "seconds": list,
    "bytes": list,
    "machine": dict,
    "notes": list,
}
"""What the values of a result must be for anyone to make tables of it."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory. Only what has finished has a result; for all else there is a reason."""

    directory: Path
    state: str
    """Finished, incomplete (running or stopped, nobody can tell), failed, or damaged."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The tables of ``config.toml``; empty where there is none."""
    result: Result | None = None
    reason: str = ""
    """Why there is no result: how far it got, what went wrong."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What the configuration says of the run as a whole: benchmark, method, seed, and what was chosen besides."""
        return _table(self.config, "experiment")

    @property
    def name(self) -> str:
        """What was run, as far as it is known: "cuber on split-digits, seed 1"."""
        about = self.about if self.result is None else vars(self.result)
        method, benchmark, seed = (about.get(key) for key in ("method", "benchmark", "seed"))
        words = [f"{method} on {benchmark}" if method and benchmark else "", f"seed {seed}" if seed is not None else ""]
        return ", ".join(word for word in words if word)


def load(paths: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """The runs in all directories, each once, in the order given and below one by name.

    A directory that is none, or has no run in it or below, is answered with a sentence; a run whose files are damaged
    is among the others, with the sentence as its reason.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        for directory in _search(path):
            found.setdefault(directory.resolve(), directory)
    return [_read(directory) for directory in found.values()]


def _search(path: Path) -> list[Path]:
    if not path.exists():
        raise CuberError(f"there is no {path}")
    if not path.is_dir():
        raise CuberError(f"{path} is a file: name the directory of a run, or one that holds several")
    found = list(_runs_below(path))
    if not found:
        raise CuberError(f"there is no run in {path}: neither {CONFIG} nor {RESULT}, in it or below it")
    return found


def _runs_below(path: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if name != CHECKPOINT)
        if {CONFIG, RESULT, ERROR} & set(files):
            yield Path(folder)


def _read(directory: Path) -> Run:
    config: Mapping[str, Any] = {}
    try:
        if (directory / CONFIG).exists():
            config = _config(directory)
        if (directory / RESULT).exists():
            return Run(directory, FINISHED, config, _checked(Result.load(directory), directory / RESULT))
        if (directory / ERROR).exists():
            message, about = _word(directory / ERROR)
            config = config or {"experiment": about}
            return Run(directory, FAILED, config, reason=f"{message} ({_progress(directory, config)})")
    except CuberError as error:
        return Run(directory, DAMAGED, config, reason=str(error))
    return Run(directory, INCOMPLETE, config, reason=_progress(directory, config))


def _config(directory: Path) -> Mapping[str, Any]:
    try:
        return read_config(directory)
    except (OSError, ValueError) as error:
        raise CuberError(
            f"{directory / CONFIG} is damaged, or not the configuration of a run ({_said(error)})"
        ) from error


def _word(path: Path) -> tuple[str, Mapping[str, Any]]:
    """Why a run failed, and what it was, where it failed too early to have a configuration."""
    try:
        word = json.loads(path.read_text(encoding="utf-8"))
        lines = str(word["message"]).splitlines()
        return lines[0] if lines else "no message", _table(word, "experiment")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CuberError(f"{path} is damaged, or not the error of a run ({_said(error)})") from error


def _checked(result: Result, path: Path) -> Result:
    """The result, if tables can be made of it; else a sentence that names the file."""
    wrong = _wrong(result)
    if wrong is not None:
        raise CuberError(f"{path} is damaged, or not the result of a run (its '{wrong}' makes no sense)")
    return result


def _wrong(result: Result) -> str | None:
    """The first value that is none of its kind, or does not belong to so many tasks."""
    for name, kind in KINDS.items():
        if not isinstance(getattr(result, name), kind):
            return name
    tasks = len(result.tasks)
    right = {
        "tasks": tasks > 0 and all(isinstance(task, dict) for task in result.tasks),
        "accuracy": _is_matrix(result.accuracy, tasks),
        "accuracy_bare": result.accuracy_bare is None or _is_matrix(result.accuracy_bare, tasks),
        "reshuffled": all(_are_numbers(row, tasks) for row in result.reshuffled),
        "regimes": len(result.regimes) <= tasks and all(map(_are_regimes, enumerate(result.regimes))),
        "theory": len(result.theory) <= tasks and all(map(_are_conditions, enumerate(result.theory))),
        "seconds": bool(result.seconds) and all(map(_is_number, result.seconds)),
        "bytes": bool(result.bytes) and all(map(_are_sizes, result.bytes)),
        "notes": all(isinstance(note, str) for note in result.notes),
    }
    return next((name for name in right if not right[name]), None)


def _are_sizes(by_kind: Any) -> bool:
    return isinstance(by_kind, dict) and all(map(_is_number, by_kind.values()))


def _are_regimes(of_task: tuple[int, Any]) -> bool:
    task, by_layer = of_task
    regimes = [known for by_task in by_layer.values() for known in by_task.items()]
    return all(
        old < task and isinstance(regime, dict) and {"regime", "fell"} <= regime.keys() for old, regime in regimes
    )


def _are_conditions(of_task: tuple[int, Any]) -> bool:
    task, by_layer = of_task
    known = [one for layer in by_layer.values() for one in layer["old"].items()]
    return all(
        old < task and {"ratio", "cosine", "eps2", "step_size", "agreement"} <= conditions.keys()
        for old, conditions in known
    )


def _is_matrix(rows: Any, tasks: int) -> bool:
    """Whether it has a row after each task, or one alone: a method that learns all tasks at once tests them once."""
    if not isinstance(rows, list) or len(rows) not in (1, tasks):
        return False
    known = range(1, tasks + 1) if len(rows) == tasks else [tasks]
    return all(_are_numbers(row, tasks, count) for row, count in zip(rows, known, strict=True))


def _are_numbers(row: Any, length: int, count: int | None = None) -> bool:
    return isinstance(row, list) and len(row) == length and all(map(_is_number, row[:count]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _progress(directory: Path, config: Mapping[str, Any]) -> str:
    """How far a run got, by its log: "3 of 10 tasks learnt, epoch 7 of the next"."""
    learnt, epoch = 0, 0
    for line in _log(directory / LOG):
        if line["event"] == "evaluation":
            learnt, epoch = line["task"] + 1, 0
        elif line["event"] == "epoch":
            epoch = line["epoch"]
    tasks = _table(config, "stream").get("tasks")
    total = f" of {len(tasks)}" if isinstance(tasks, list) else ""
    return f"{learnt}{total} tasks learnt" + (f", epoch {epoch} of the next" if epoch else "")


def _log(path: Path) -> Iterator[dict[str, Any]]:
    """The lines that make sense: the last of a run that was killed may be cut."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            values = {"event": None, "task": 0, "epoch": 0} | json.loads(line)
        except (ValueError, TypeError):
            continue
        if isinstance(values["task"], int) and isinstance(values["epoch"], int):
            yield values


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = config.get(name, {})
    return table if isinstance(table, dict) else {}


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
