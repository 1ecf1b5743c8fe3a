"""Read run directories: configuration, progress and result."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuber.core.formatting import pluralize
from cuber.errors import CuberError
from cuber.runs import schema
from cuber.runs.config_file import CONFIG, read_config
from cuber.runs.directory import CHECKPOINT, ERROR, LOG, REPLACED
from cuber.runs.files import read_text
from cuber.runs.lock import is_held
from cuber.runs.result import FILE_NAME as RESULT
from cuber.training import Result

FINISHED, FAILED, DAMAGED = "finished", "failed", "damaged"
RUNNING, STOPPED, INCOMPLETE = "running", "stopped", "incomplete"
STATES = {True: RUNNING, False: STOPPED, None: INCOMPLETE}
"""State of a run without a result, by whether a process holds its lock; None: unknown."""


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run directory; a run that is not finished has a reason instead of a result."""

    directory: Path
    state: str  # finished, running, stopped, failed or damaged; incomplete if it is unknown whether it runs
    config: Mapping[str, Any] = field(default_factory=dict)  # the tables of config.toml, if it exists
    result: Result | None = None
    reason: str = ""  # why there is no result: the progress, or the error

    @property
    def about(self) -> Mapping[str, Any]:
        """The table "experiment" of the configuration: benchmark, method, seed and options."""
        return dict(self.config.get("experiment", {}))

    @property
    def name(self) -> str:
        """What was run, as far as known: "cuber on split-digits, seed 1"."""
        about = self.about if self.result is None else vars(self.result)
        method, benchmark, seed = (about.get(key) for key in ("method", "benchmark", "seed"))
        what, which = f"{method} on {benchmark}", f"seed {seed}"
        return ", ".join(([what] if method and benchmark else []) + ([which] if seed is not None else []))


def load(paths: Iterable[str | os.PathLike[str]]) -> list[RunRecord]:
    """Read all runs in or below the directories, each once, in the given order, below a directory by name.

    A run with damaged files has the state "damaged" and the error as its reason.

    Raises:
        CuberError: A path is no directory, or has no run in or below it.
    """
    found: dict[Path, Path] = {}
    for given in paths:
        if not str(given):  # as from an unset variable of a shell; Path('') would be the current directory
            raise CuberError("the name of a directory of runs is empty")
        path = Path(given)
        if not path.exists():
            raise CuberError(f"directory {path} does not exist")
        if not path.is_dir():
            raise CuberError(f"{path} is a file: name the directory of a run, or one that holds several")
        runs = list(_runs_below(path))
        if not runs:
            raise CuberError(f"there is no run in {path}: neither {CONFIG} nor {RESULT}, in it or below it")
        for directory in runs:
            found.setdefault(directory.resolve(), directory)
    return [read(directory) for directory in found.values()]


def _runs_below(path: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if name.lstrip(".") not in (CHECKPOINT, REPLACED))
        if {CONFIG, RESULT} & set(files):
            yield Path(folder)


def read(directory: Path) -> RunRecord:
    """Read one run directory."""
    config: Mapping[str, Any] = {}
    try:
        if (directory / CONFIG).exists():
            config = read_config(directory)
        if (directory / RESULT).exists():
            return RunRecord(directory, FINISHED, config, Result.load(directory))
        (learned, epoch), tasks = progress(directory), tasks_of(config)
        count = pluralize(learned, "task") if tasks is None else f"{learned} of {pluralize(tasks, 'task')}"
        how_far = f"{count} learned" + (f", epoch {epoch} of the next" if epoch else "")
        if (directory / ERROR).exists():
            return RunRecord(directory, FAILED, config, reason=f"{_why_it_failed(directory)} ({how_far})")
    except CuberError as error:
        return RunRecord(directory, DAMAGED, config, reason=str(error))
    return RunRecord(directory, STATES[is_held(directory)], config, reason=how_far)


def _why_it_failed(directory: Path) -> str:
    """First line of the error of a failed run."""
    path = directory / ERROR
    try:
        values = json.loads(read_text(path))
        schema.ERROR(values, "")
        lines = values["message"].splitlines()
    except (OSError, ValueError, RecursionError) as error:  # whatever it was, the run can be tried again
        return f"{path} is damaged, or not the error of a run ({error})"
    return lines[0] if lines else "no message"


def progress(directory: Path) -> tuple[int, int]:
    """Number of learned tasks and of epochs of the next task, by the log; the last line of a killed run may be cut."""
    try:
        lines = read_text(directory / LOG, errors="replace").splitlines()
    except OSError:
        return 0, 0
    for line in reversed(lines):
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(line)
            schema.EVENT(values, "")
            if values["event"] == "evaluation":
                return values["task"] + 1, 0
            if values["event"] == "epoch":
                return values["task"], values.get("epoch", 0)
    return 0, 0


def tasks_of(config: Mapping[str, Any]) -> int | None:
    """Number of tasks in the configuration of a run."""
    tasks = config.get("stream", {}).get("tasks")
    return None if tasks is None else len(tasks)
