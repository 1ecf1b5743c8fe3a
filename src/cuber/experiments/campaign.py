"""Running a grid: what is finished is skipped, what fails is kept apart, how it stands can be watched."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path

from cuber.errors import CuberError
from cuber.experiments.grid import Cell
from cuber.experiments.processes import work
from cuber.training.directory import ERROR, LOG, read_config, ready_for_toml
from cuber.training.result import FILE_NAME, Result

WAITING, RUNNING, FINISHED, FAILED, STOPPED = "waiting", "running", "finished", "failed", "stopped"
SECONDS_BETWEEN_LOOKS = 0.5


@dataclass
class Standing:
    """How one experiment of a grid stands."""

    cell: Cell
    state: str = WAITING
    message: str = ""
    """Why it failed, or what came out."""
    done: float = 0.0
    """The part that is done, from 0 to 1; more than true where tasks are stopped early."""
    began: float = 0.0
    part_at_start: float = 0.0

    @property
    def name(self) -> str:
        """Benchmark, variant and seed, as in its directory."""
        return "/".join(self.cell.directory.parts[-3:])

    def seconds_left(self, now: float) -> float | None:
        """By how fast it went since it began; None while nobody can know."""
        gained = self.done - self.part_at_start
        return (now - self.began) * (1 - self.done) / gained if self.state == RUNNING and gained > 0 else None


Watch = Callable[[Sequence[Standing]], None]


def run_grid(
    cells: Sequence[Cell], executor: Executor, *, retry: bool = False, watch: Watch | None = None
) -> list[Standing]:
    """Run every experiment that is not finished; those that have failed before only where asked to ``retry``.

    ``executor`` has ``submit``, as those of concurrent.futures: it may run things anywhere that sees the directories.
    """
    standings = [_before(cell, retry) for cell in cells]
    futures: dict[Future[None], Standing] = {}
    for standing in standings:
        if standing.state == WAITING:
            futures[executor.submit(work, standing.cell.experiment, standing.cell.directory)] = standing
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
        for future in done:
            _after(futures[future], future)
        for future in pending:
            _meanwhile(futures[future], future)
        if watch is not None:
            watch(standings)
    return standings


def _before(cell: Cell, retry: bool) -> Standing:
    standing = Standing(cell)
    if (cell.directory / FILE_NAME).exists():
        different = _differences(cell)
        if different:
            return dataclasses.replace(standing, state=FAILED, message=f"holds another run: {different}")
        _finish(standing)
    elif (cell.directory / ERROR).exists() and not retry:
        standing.state, standing.message = FAILED, f"failed before: {_word(cell.directory)}"
    return standing


def _meanwhile(standing: Standing, future: Future[None]) -> None:
    if future.running():
        if standing.state == WAITING:
            standing.state, standing.began = RUNNING, time.monotonic()
            standing.part_at_start = part_done(standing.cell)
        standing.done = part_done(standing.cell)


def _after(standing: Standing, future: Future[None]) -> None:
    error = KeyboardInterrupt() if future.cancelled() else future.exception()
    if error is None:
        _finish(standing)
    elif isinstance(error, KeyboardInterrupt):
        standing.state = STOPPED
    else:
        standing.state, standing.message = FAILED, _word(standing.cell.directory) or str(error)


def _finish(standing: Standing) -> None:
    try:
        result = Result.load(standing.cell.directory)
    except CuberError as error:
        standing.state, standing.message = FAILED, str(error)
        return
    bwt = "" if result.bwt is None else f"  BWT {result.bwt:+.2f}"
    standing.state, standing.done, standing.message = FINISHED, 1.0, f"ACC {result.acc:.2f}{bwt}"


def _word(directory: Path) -> str:
    """What a run that has failed left behind."""
    try:
        return json.loads((directory / ERROR).read_text(encoding="utf-8"))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def part_done(cell: Cell) -> float:
    """How far a run has come, by its log."""
    try:
        tasks = len(read_config(cell.directory)["stream"]["tasks"])
        lines = (cell.directory / LOG).read_text(encoding="utf-8").splitlines()
    except (OSError, KeyError, ValueError):
        return 0.0
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:  # the last line of a process that was killed while it wrote
            continue
        if event["event"] == "evaluation":
            return sum(value is not None for value in event["accuracy"]) / tasks
        if event["event"] == "epoch":
            return (event["task"] + event["epoch"] / cell.experiment.training().epochs) / tasks
    return 0.0


def _differences(cell: Cell) -> str:
    """Where a finished run is another than the one that is asked for."""
    try:
        there = read_config(cell.directory)
    except (OSError, ValueError) as error:
        return f"cannot read its configuration ({error})"
    wanted = cell.experiment.expected()
    return "; ".join(
        f"{table}.{key} was {there.get(table, {}).get(key)!r} and is now {value!r}"
        for table, values in ready_for_toml(wanted).items()
        for key, value in values.items()
        if there.get(table, {}).get(key) != value
    )
