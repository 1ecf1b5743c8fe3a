"""A run directory: what was run, how it went, where it stands, and what came out."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import tomli_w
from filelock import FileLock, Timeout

from cuber.errors import CuberError, CuberWarning
from cuber.files import write_atomically
from cuber.loggers import CsvFile, JsonLines, Logger
from cuber.methods.settings import is_number, short
from cuber.training.checkpoint import Checkpoints
from cuber.training.result import FILE_NAME, Result, UnwrittenResultError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG, LOG, METRICS, ERROR = "config.toml", "log.jsonl", "metrics.csv", "error.json"
CHECKPOINT, LOCK, OUTPUT = "checkpoint", ".lock", "output.txt"
MACHINE = "machine"
"""The table of the configuration that decides no result: it may differ when a run goes on."""
SECONDS_BETWEEN = 60.0

Config = Mapping[str, Mapping[str, Any]]


class RunDirectory:
    """Holds a directory for one run, as a context manager; whoever else wants it meanwhile is refused.

    ``checkpoint_every`` is a number of epochs; None: about once a minute, in the middle of an epoch too.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        checkpoint_every: int | None = None,
        fresh: bool = False,
        loggers: Sequence[Logger] = (),
    ) -> None:
        if checkpoint_every is not None and (not is_number(checkpoint_every, whole=True) or checkpoint_every < 1):
            raise CuberError(f"checkpoint_every must be a whole number of epochs, not {short(checkpoint_every)}")
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / CHECKPOINT)
        self.checkpoint_every = checkpoint_every
        self.fresh = fresh
        self.loggers: list[Logger] = [JsonLines(self.path / LOG), CsvFile(self.path / METRICS), *loggers]
        self._lock = FileLock(self.path / LOCK)
        self._saved = time.monotonic()
        self._opened = False
        self._made: list[Path] = []
        self.was_finished = False
        """Whether there was nothing left to do."""

    def __enter__(self) -> RunDirectory:
        try:
            if self._is_foreign():
                raise CuberError(f"{self.path} holds files that are not those of a run: choose another directory")
            self._made = [folder for folder in self.path.parents if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise CuberError(f"another process is at work in {self.path}: wait for it, or choose another") from None
        except OSError as error:
            raise CuberError(f"cannot write to {self.path}: {error.strerror or error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._opened:
                self._close(error)
        finally:
            self._lock.release()

    def open(self, config: Config) -> tuple[Result | None, dict[str, Any] | None]:
        """Compare with what is there: the result of a finished run, or the state to go on from, or neither."""
        ready = ready_for_toml(config)
        if self.fresh:
            self._clear()
        state = None
        if (self.path / CONFIG).exists():
            self._compare(ready)
            if (self.path / FILE_NAME).exists():
                self.was_finished = True
                return Result.load(self.path), None
            state = self.checkpoints.load()
        (self.path / ERROR).unlink(missing_ok=True)
        write_atomically(self.path / CONFIG, tomli_w.dumps(ready))
        self._opened = True
        self._start_loggers(ready, state)
        return None, state

    def due(self, epochs: int | None = None) -> bool:
        """Whether it is time for a checkpoint, after so many epochs of the task, or (None) in the middle of one."""
        if self.checkpoint_every is not None:
            return epochs is not None and epochs % self.checkpoint_every == 0
        return time.monotonic() - self._saved >= SECONDS_BETWEEN

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint; a disk that is full costs a warning, not the run."""
        try:
            self.checkpoints.save({**state, "loggers": [logger.position() for logger in self.loggers]})
        except OSError as error:
            what = error.strerror or error
            warnings.warn(
                f"no checkpoint could be written to {self.path} ({what}): going on", CuberWarning, stacklevel=2
            )
        self._saved = time.monotonic()

    def finish(self, result: Result) -> None:
        """Write the result: the run is over."""
        try:
            result.save(self.path)
        except CuberError as error:
            raise UnwrittenResultError(str(error), result) from error
        self.event("finished", {"acc": result.acc, "bwt": result.bwt})

    def event(self, name: str, values: dict[str, Any]) -> None:
        """Tell all loggers."""
        for logger in self.loggers:
            logger.event(name, values)

    def _is_foreign(self) -> bool:
        """Whether there are files, but not those of a run."""
        if not self.path.is_dir() or (self.path / CONFIG).exists():
            return False
        # Hidden ones are the lock, and what a process left that was killed while it wrote.
        return any(path.name not in (ERROR, OUTPUT) and path.name[0] != "." for path in self.path.iterdir())

    def _start_loggers(self, config: dict[str, Any], state: dict[str, Any] | None) -> None:
        positions = state["loggers"] if state else []
        for i, logger in enumerate(self.loggers):
            logger.start(config, positions[i] if i < len(positions) else None)
        self.event("resumed" if state else "started", {})

    def _compare(self, config: dict[str, dict[str, Any]]) -> None:
        try:
            there = read_config(self.path)
        except (OSError, ValueError) as error:
            raise CuberError(f"cannot read {self.path / CONFIG} ({error}): start over with --fresh") from error
        before, now = _flat(there), _flat(config)
        changed = [
            f"{key} was {before.get(key, 'not there')!r} and is now {now.get(key, 'not there')!r}"
            for key in {**before, **now}
            if before.get(key) != now.get(key)
        ]
        decisive = [change for change in changed if not change.startswith(MACHINE)]
        if decisive:
            raise CuberError(
                f"{self.path} holds a run with another configuration: {'; '.join(decisive)}; "
                "choose another directory, or start over with --fresh"
            )
        if changed and not (self.path / FILE_NAME).exists():
            warnings.warn(
                f"going on with {self.path} on another machine or version ({'; '.join(changed)}): "
                "the result may not be the same to the bit",
                CuberWarning,
                stacklevel=3,
            )

    def _close(self, error: BaseException | None) -> None:
        """Say why the run has stopped or failed, for whoever looks later; where nothing is lost, leave no trace."""
        if isinstance(error, KeyboardInterrupt):
            self.event("stopped", {"message": str(error)})
        elif isinstance(error, Exception):
            self.event("failed", {"message": str(error)})
            text = "".join(traceback.format_exception(error))
            write_atomically(self.path / ERROR, json.dumps({"message": str(error), "traceback": text}, indent=1))
        for logger in self.loggers:
            logger.close()
        if isinstance(error, Exception) and not any(self.checkpoints.directory.glob("*.json")):
            self._clear()
            self._lock.release()
            for leftover in (self.path / LOCK, self.path, *self._made):
                with contextlib.suppress(OSError):
                    leftover.rmdir() if leftover.is_dir() else leftover.unlink()

    def _clear(self) -> None:
        self.checkpoints.clear()
        for name in (FILE_NAME, CONFIG, LOG, METRICS, ERROR):
            (self.path / name).unlink(missing_ok=True)


def read_config(directory: Path) -> dict[str, Any]:
    """The configuration of a run, table by table; raises OSError or ValueError."""
    return tomllib.loads((directory / CONFIG).read_text(encoding="utf-8"))


def ready_for_toml(config: Config) -> dict[str, dict[str, Any]]:
    """The same configuration in what TOML can have, which knows no None."""
    return {table: {key: _ready(value) for key, value in part.items()} for table, part in config.items()}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _ready(value: Any) -> Any:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return {str(key): _ready(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_ready(part) for part in value]
    return value if isinstance(value, bool | int | float | str) else str(value)
