"""A run directory: what was run, how it went, where it stands, and what came out."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cuber.errors import CuberError, CuberWarning
from cuber.runs.files import write_atomically
from cuber.loggers import LEFTOVERS, CsvFile, JsonLines, Logger
from cuber.core.settings import is_number, short
from cuber.runs.checkpoint import Checkpoints
from cuber.runs.config_file import (
    CONFIG,
    Config,
    decides,
    differences,
    listed,
    read_config,
    ready_for_toml,
    write_config,
)
from cuber.runs.lock import Lock, RefusedError
from cuber.runs.previous_run import REPLACED, Replaced, remove
from cuber.runs.result import FILE_NAME, Result, UnwrittenResultError

LOG, METRICS, ERROR = "log.jsonl", "metrics.csv", "error.json"
CHECKPOINT, OUTPUT = "checkpoint", "output.txt"
OWN = (FILE_NAME, CHECKPOINT, LOG, METRICS, ERROR, CONFIG)
"""What a run writes; by its configuration others know it, so that is the last to go."""
EVERYTHING = (OUTPUT, *LEFTOVERS, *OWN)
"""And what is written about it."""
SECONDS_BETWEEN = 60.0


class RunDirectory:
    """Holds a directory for one run, as a context manager; whoever else wants it meanwhile is refused.

    ``checkpoint_every`` is a number of epochs; None: about once a minute, in the middle of an epoch too. ``fresh``
    starts over: the run that is there is kept aside until the new one has a checkpoint. A run that fails before it
    has one leaves no trace, unless asked to ``keep_failures``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        checkpoint_every: int | None = None,
        fresh: bool = False,
        keep_failures: bool = False,
        loggers: Sequence[Logger] = (),
    ) -> None:
        if checkpoint_every is not None and (not is_number(checkpoint_every, whole=True) or checkpoint_every < 1):
            raise CuberError(f"checkpoint_every must be a whole number of epochs, not {short(checkpoint_every)}")
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / CHECKPOINT)
        self.checkpoint_every = checkpoint_every
        self.fresh = fresh
        self.keep_failures = keep_failures
        self.loggers: list[Logger] = [JsonLines(self.path / LOG), CsvFile(self.path / METRICS), *loggers]
        self._lock = Lock(self.path)
        self._replaced = Replaced(self.path, EVERYTHING)
        self._saved = time.monotonic()
        self._opened = False
        self._made: list[Path] = []
        self.was_finished = False
        """Whether there was nothing left to do."""

    def __enter__(self) -> RunDirectory:
        self._hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._opened:
                self._say_why(error)
        finally:
            if self._lock.held:
                self._leave(failed=self._opened and isinstance(error, Exception))

    def open(self, config: Config) -> tuple[Result | None, dict[str, Any] | None]:
        """Compare with what is there: the result of a finished run, or the state to go on from, or neither."""
        ready = ready_for_toml(config)
        state = None
        self._hold()
        if any((self.path / name).exists() for name in (CONFIG, CHECKPOINT, FILE_NAME)):
            if self.fresh:
                self._replaced.put_aside()
            else:
                self._compare(ready)
                if (self.path / FILE_NAME).exists():
                    self.was_finished = True
                    return Result.load(self.path), None
                state = self.checkpoints.load()
        (self.path / ERROR).unlink(missing_ok=True)
        write_config(self.path, ready)
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
            self._replaced.settle(got_somewhere=True)
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

    def _hold(self) -> None:
        """Keep others out, but for a run that is only to be shown; and settle what a killed process has left."""
        if self._lock.held:
            return
        try:
            if self._is_foreign():
                raise RefusedError(f"{self.path} holds files that are not those of a run: choose another directory")
            if not self.fresh and (self.path / FILE_NAME).exists():
                return
            self._made = [folder for folder in self.path.parents if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._settle()
        except OSError as error:
            raise CuberError(f"cannot write to {self.path}: {error.strerror or error}") from error

    def _is_foreign(self) -> bool:
        """Whether there are files, but not those of a run."""
        if not self.path.is_dir() or (self.path / CONFIG).exists():
            return False
        # Hidden ones are the lock, and what a process left that was killed while it wrote.
        names = {path.name for path in self.path.iterdir() if path.name[0] != "."}
        return bool(names - {*EVERYTHING, REPLACED}) or (CHECKPOINT in names and LOG not in names)

    def _got_somewhere(self) -> bool:
        return self.checkpoints.any() or (self.path / FILE_NAME).exists()

    def _settle(self) -> None:
        self._replaced.settle(got_somewhere=self._got_somewhere())

    def _start_loggers(self, config: dict[str, Any], state: dict[str, Any] | None) -> None:
        positions = state["loggers"] if state else []
        for i, logger in enumerate(self.loggers):
            logger.start(config, positions[i] if i < len(positions) else None)
        self.event("resumed" if state else "started", {})

    def _compare(self, config: dict[str, dict[str, Any]]) -> None:
        there = read_config(self.path)
        changed = differences(there, config)
        decisive = [sentence for name, sentence in changed.items() if decides(name, there)]
        if decisive:
            raise RefusedError(
                f"{self.path} holds a run with another configuration: {listed(decisive)}; "
                "choose another directory, or start over with --fresh"
            )
        if changed and not (self.path / FILE_NAME).exists():
            warnings.warn(
                f"going on with {self.path} on another machine or version ({listed(list(changed.values()))}): "
                "the result may not be the same to the bit",
                CuberWarning,
                stacklevel=3,
            )

    def _say_why(self, error: BaseException | None) -> None:
        """Why the run has stopped or failed, for whoever looks later."""
        if isinstance(error, KeyboardInterrupt):
            self.event("stopped", {"message": str(error)})
        elif isinstance(error, Exception):
            self.event("failed", {"message": str(error)})
            word = {
                "message": str(error) or type(error).__name__,
                "traceback": "".join(traceback.format_exception(error)),
            }
            write_atomically(self.path / ERROR, json.dumps(word, indent=1))
        for logger in self.loggers:
            logger.close()

    def _leave(self, *, failed: bool) -> None:
        """Give the directory back; where a run has failed that had got nowhere, there is no trace of it."""
        self._settle()
        without_trace = failed and not self.keep_failures and not self._got_somewhere()
        if without_trace:
            remove(self.path, OWN)
        self._lock.release(remove=without_trace)
        for folder in (self.path, *self._made) if without_trace else ():
            with contextlib.suppress(OSError):
                folder.rmdir()
