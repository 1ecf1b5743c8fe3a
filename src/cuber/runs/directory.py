"""A run directory: configuration, logs, checkpoints, and the result; and stopping a run so that it can be resumed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import tomli_w

from cuber.core.settings import is_number, short
from cuber.errors import CuberError, CuberWarning
from cuber.loggers import SERVICE_FILES, CsvFile, JsonLines, Logger
from cuber.runs.checkpoint import Checkpoints
from cuber.runs.config_file import CONFIG, Config, decides, differences, listed, read_config, ready_for_toml
from cuber.runs.files import write_atomically
from cuber.runs.lock import LOCK, InUseError, Lock, RefusedError, acquire
from cuber.runs.result import FILE_NAME, Result, UnwrittenResultError

LOG, METRICS, ERROR = "log.jsonl", "metrics.csv", "error.json"
CHECKPOINT, OUTPUT, REPLACED = "checkpoint", "output.txt", "replaced"
OWN = (FILE_NAME, CHECKPOINT, LOG, METRICS, ERROR, CONFIG)
"""Files of a run in the order of removal: the configuration identifies a run directory, so it is last."""
EVERYTHING = (OUTPUT, *SERVICE_FILES, *OWN)
SECONDS_BETWEEN = 60.0
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the errors of a full disk, a used-up quota and a file that is too large."""


class RunDirectory:
    """Context manager that locks a directory for one run.

    Args:
        path: The directory; made if it does not exist.
        checkpoint_every: Epochs between checkpoints; None: about one minute, also within epochs.
        fresh: Start over; the previous run is deleted when the new one has its first checkpoint.
        keep_failures: Keep the files of a run that failed before its first checkpoint.
        loggers: Loggers besides ``log.jsonl`` and ``metrics.csv``.

    Raises:
        CuberError: On entering, which ``cuber.learn`` does, if the directory cannot be written, is in use or holds
            other files.

    >>> import tempfile
    >>> from cuber.experiments import Experiment, run
    >>> experiment = Experiment("split-digits", "finetune", tasks=2, epochs=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for _ in range(2):  # the second time the result is read
    ...         directory = RunDirectory(f"{folder}/run", checkpoint_every=1)
    ...         result = run(experiment, directory)
    ...         print(directory.was_finished)
    False
    True
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
        self._lock: Lock | None = None
        self._previous = PreviousRun(self.path, EVERYTHING)
        self._saved = time.monotonic()
        self._opened = False
        self._made: list[Path] = []
        """Parent folders that did not exist before."""
        self.was_finished = False
        """Whether the directory held the finished run already."""

    def __enter__(self) -> RunDirectory:
        """Lock the directory, unless a finished run is only to be read; clean up after a killed process."""
        try:
            if self._is_foreign():
                raise RefusedError(f"{self.path} holds files that are not those of a run: choose another directory")
            if self.fresh or not (self.path / FILE_NAME).exists():
                self._previous.check()
                self._made = [folder for folder in self.path.parents if not folder.exists()]
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock = acquire(self.path)
                self._previous.settle(keep_new=self._has_progress())
        except OSError as error:
            raise CuberError(f"cannot write to {self.path}: {error.strerror or error}") from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Log how the run ended, and unlock the directory; a full disk is an error of one sentence."""
        try:
            if self._opened and not self._is_lost():
                self._close_loggers(error)
        except OSError as failure:  # why the run ended is more than that this could not be logged
            error = error or failure
        finally:
            if self._lock is not None:
                self._release(self._lock, failed=self._opened and isinstance(error, Exception))
        if isinstance(error, OSError) and error.errno in FULL:
            again = "free some space, and the same command or call goes on from the last checkpoint"
            raise CuberError(f"cannot write to {self.path} ({error.strerror}): {again}") from error

    def open(self, config: Config) -> tuple[Result | None, dict[str, Any] | None]:
        """Begin or resume the run with this configuration, within the context.

        Returns:
            The result if the run is finished, and the state to resume from if it has a checkpoint.

        Raises:
            RefusedError: If the directory holds another run.
        """
        ready = ready_for_toml(config)
        state = None
        if self._lock is None or any((self.path / name).exists() for name in (CONFIG, CHECKPOINT, FILE_NAME)):
            if self.fresh:
                self._previous.set_aside()
            else:
                self._compare(ready)
                if self._lock is None or (self.path / FILE_NAME).exists():
                    self.was_finished = True
                    return Result.load(self.path), None
                state = self.checkpoints.load()
        (self.path / ERROR).unlink(missing_ok=True)
        write_atomically(self.path / CONFIG, tomli_w.dumps(ready))
        self._opened = True
        positions = state["loggers"] if state else {}
        for name, logger in self._named_loggers():
            logger.start(ready, positions.get(name))
        self.event("resumed" if state else "started", {})
        return None, state

    def due(self, epochs: int | None = None) -> bool:
        """Return whether to save now, after this number of epochs of the task, or (None) within an epoch."""
        if self.checkpoint_every is not None:
            return epochs is not None and epochs % self.checkpoint_every == 0
        return time.monotonic() - self._saved >= SECONDS_BETWEEN

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint; if the disk is full, warn and continue."""
        self._check_lock()
        try:
            positions = {name: logger.position() for name, logger in self._named_loggers()}
            self.checkpoints.save({**state, "loggers": positions})
            self._previous.settle(keep_new=True)
        except OSError as error:
            message = f"cannot write a checkpoint to {self.path} ({error.strerror or error})"
            warnings.warn(f"{message}: training continues without it", CuberWarning, stacklevel=2)
        self._saved = time.monotonic()

    def finish(self, result: Result) -> None:
        """Write the result."""
        self._check_lock()
        try:
            result.save(self.path)
        except CuberError as error:
            raise UnwrittenResultError(str(error), result) from error
        self.event("finished", {"acc": result.acc, "bwt": result.bwt})

    def event(self, name: str, values: dict[str, Any]) -> None:
        """Send an event to all loggers."""
        for logger in self.loggers:
            logger.event(name, values)

    def _named_loggers(self) -> Iterator[tuple[str, Logger]]:
        """Name each logger by its class, so that a run may be resumed with others; several of a class are numbered."""
        seen: Counter[str] = Counter()
        for logger in self.loggers:
            kind = f"{type(logger).__module__}.{type(logger).__qualname__}"
            seen[kind] += 1
            yield f"{kind} {seen[kind]}", logger

    def _is_lost(self) -> bool:
        return self._lock is not None and self._lock.is_lost

    def _check_lock(self) -> None:
        """Write nothing into a directory in which another machine has continued the run."""
        if self._is_lost():
            raise InUseError(f"{self.path} was taken over by another machine, which found this one dead: stopped here")

    def _is_foreign(self) -> bool:
        """Return whether the directory holds files, but no run."""
        if not self.path.is_dir() or (self.path / CONFIG).exists():
            return False
        # Hidden files are the lock, and temporary ones of a killed process.
        names = {path.name for path in self.path.iterdir() if path.name[0] != "."}
        return bool(names - {*EVERYTHING, REPLACED}) or (CHECKPOINT in names and LOG not in names)

    def _has_progress(self) -> bool:
        return self.checkpoints.any() or (self.path / FILE_NAME).exists()

    def _compare(self, config: dict[str, dict[str, Any]]) -> None:
        """Refuse another configuration; warn of another machine."""
        changed = differences(read_config(self.path), config)
        decisive = [sentence for name, sentence in changed.items() if decides(name)]
        if decisive:
            raise RefusedError(
                f"{self.path} holds a run with another configuration: {listed(decisive)}; "
                "choose another directory, or start over with --fresh, in Python with RunDirectory(path, fresh=True)"
            )
        if changed and not (self.path / FILE_NAME).exists():
            machines = listed(list(changed.values()))
            message = f"resuming {self.path} on another machine or version ({machines})"
            warnings.warn(f"{message}: the result may differ in its last bits", CuberWarning, stacklevel=3)

    def _close_loggers(self, error: BaseException | None) -> None:
        """Log why the run ended, and write ``error.json`` if it failed."""
        if isinstance(error, KeyboardInterrupt):
            self.event("stopped", {"message": str(error)})
        elif isinstance(error, Exception):
            message = str(error) or type(error).__name__
            self.event("failed", {"message": message})
            details = {"message": message, "traceback": "".join(traceback.format_exception(error))}
            write_atomically(self.path / ERROR, json.dumps(details, indent=1))
        for logger in self.loggers:
            logger.close()

    def _release(self, lock: Lock, *, failed: bool) -> None:
        """Unlock the directory; remove the files of a run that failed before its first checkpoint."""
        if not lock.is_lost:
            self._previous.settle(keep_new=self._has_progress())
        discard = failed and not lock.is_lost and not self.keep_failures and not self._has_progress()
        if discard:
            remove(self.path, (*OWN, LOCK))  # the lock's file only while it is held
        lock.release()
        self._lock = None
        for folder in (self.path, *self._made) if discard else ():
            with contextlib.suppress(OSError):
                folder.rmdir()


class PreviousRun:
    """The run that ``--fresh`` replaces: files of a directory, moved to its folder ``replaced`` and back."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self._directory = directory
        self._names = names
        self._kept = directory / REPLACED
        self._moving = directory / f".{REPLACED}"
        """Exists only while files are moved: if it is found, a process was killed meanwhile."""

    def check(self) -> None:
        """Refuse anything but folders of these names, as files would be lost when they are moved there."""
        for path in (self._kept, self._moving):
            if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
                raise RefusedError(f"{path} is not the folder of a run that --fresh replaces: remove it")

    def set_aside(self) -> None:
        """Move the files to the folder."""
        self._moving.mkdir()
        for name in self._names:
            if os.path.lexists(self._directory / name):
                (self._directory / name).rename(self._moving / name)
        self._moving.rename(self._kept)

    def settle(self, *, keep_new: bool) -> None:
        """Delete the previous run, or restore it in place of the new one; do nothing if there is none."""
        if self._kept.exists() and keep_new:
            shutil.rmtree(self._kept, ignore_errors=True)
        elif self._kept.exists():
            remove(self._directory, self._names)
            self._kept.rename(self._moving)
        if self._moving.exists():
            for path in self._moving.iterdir():
                path.rename(self._directory / path.name)
            self._moving.rmdir()


def remove(directory: Path, names: Sequence[str]) -> None:
    """Remove files and folders, in this order."""
    for name in names:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class Stopped(KeyboardInterrupt):
    """A run was stopped by a signal, after a checkpoint was written."""

    def __init__(self, number: int, place: str) -> None:
        super().__init__(f"stopped {place}; the same command or call resumes it")
        self.signal = number


@contextlib.contextmanager
def recorded_signals(*, impatient: bool = True) -> Iterator[list[int]]:
    """Record SIGINT and SIGTERM in a list instead of obeying them.

    Args:
        impatient: A second Ctrl-C interrupts at once.
    """
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT and impatient:
            raise KeyboardInterrupt
        received.append(number)

    in_main_thread = threading.current_thread() is threading.main_thread()  # others cannot set handlers
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    handlers = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
