"""Run directories, read: what was run, how far it got, what came out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuber.core.formatting import pluralize
from cuber.errors import CuberError
from cuber.runs.config_file import CONFIG, read_config
from cuber.runs.directory import CHECKPOINT, ERROR, LOG
from cuber.runs.lock import is_held
from cuber.runs.previous_run import REPLACED
from cuber.runs.result import FILE_NAME as RESULT
from cuber.training import Result

FINISHED, FAILED, DAMAGED = "finished", "failed", "damaged"
RUNNING, STOPPED, INCOMPLETE = "running", "stopped", "incomplete"
STATES = {True: RUNNING, False: STOPPED, None: INCOMPLETE}
"""Of a run without a result, by whether a process is at work on it."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory. Only what has finished has a result; for all else there is a reason."""

    directory: Path
    state: str
    """Finished, running, stopped, failed, or damaged; incomplete where nobody can tell if it is running."""
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
        folders[:] = sorted(name for name in folders if name.lstrip(".") not in (CHECKPOINT, REPLACED))
        if {CONFIG, RESULT} & set(files):
            yield Path(folder)


def _read(directory: Path) -> Run:
    config: Mapping[str, Any] = {}
    try:
        if (directory / CONFIG).exists():
            config = read_config(directory)
        if (directory / RESULT).exists():
            return Run(directory, FINISHED, config, Result.load(directory))
        if (directory / ERROR).exists():
            why = why_it_failed(directory)
            return Run(directory, FAILED, config, reason=f"{why} ({_how_far(directory, config)})")
    except CuberError as error:
        return Run(directory, DAMAGED, config, reason=str(error))
    return Run(directory, STATES[is_held(directory)], config, reason=_how_far(directory, config))


def why_it_failed(directory: Path) -> str:
    """The word that a run left which failed, in one line."""
    path = directory / ERROR
    try:
        lines = str(json.loads(path.read_text(encoding="utf-8"))["message"]).splitlines()
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise CuberError(f"{path} is damaged, or not the error of a run ({reason}): remove it") from error
    return lines[0] if lines else "no message"


def progress(directory: Path) -> tuple[int, int]:
    """How far a run got, by its log: the tasks learnt, and the epochs of the next."""
    learnt, epoch = 0, 0
    for line in _log(directory / LOG):
        if line["event"] == "evaluation":
            learnt, epoch = line["task"] + 1, 0
        elif line["event"] == "epoch":
            learnt, epoch = line["task"], line["epoch"]
    return learnt, epoch


def tasks_of(config: Mapping[str, Any]) -> int | None:
    """How many tasks a run's stream has, by its configuration."""
    tasks = _table(config, "stream").get("tasks")
    return len(tasks) if isinstance(tasks, list) else None


def _how_far(directory: Path, config: Mapping[str, Any]) -> str:
    """In words: "3 of 10 tasks learnt, epoch 7 of the next"."""
    (learnt, epoch), tasks = progress(directory), tasks_of(config)
    so_many = pluralize(learnt, "task") if tasks is None else f"{learnt} of {pluralize(tasks, 'task')}"
    return f"{so_many} learnt" + (f", epoch {epoch} of the next" if epoch else "")


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
