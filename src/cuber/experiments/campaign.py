"""Running a grid: what is finished is skipped, what fails is kept apart, how it stands can be watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, replace

from cuber.core.formatting import format_number
from cuber.errors import CuberError
from cuber.experiments.grid import Cell
from cuber.experiments.processes import work
from cuber.experiments.results import progress, tasks_of, why_it_failed
from cuber.runs.config_file import CONFIG, Config, differences, listed, read_config, ready_for_toml
from cuber.runs.directory import ERROR
from cuber.runs.lock import RefusedError
from cuber.runs.result import FILE_NAME, Result

WAITING, RUNNING, FINISHED = "waiting", "running", "finished"
FAILED, REFUSED, STOPPED = "failed", "refused", "stopped"
SECONDS_BETWEEN_LOOKS = 0.5


@dataclass
class JobStatus:
    """How one experiment of a grid stands."""

    cell: Cell
    state: str = WAITING
    message: str = ""
    """Why it failed or was refused, or what came out."""
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


Watch = Callable[[Sequence[JobStatus]], None]


def run_grid(
    cells: Sequence[Cell],
    executor: Executor,
    *,
    retry: bool = False,
    fresh: bool = False,
    watch: Watch | None = None,
) -> list[JobStatus]:
    """Run every experiment that is not finished; those that have failed before only where asked to ``retry``.

    A run that goes on keeps its number of threads, on which its bits depend; ``fresh`` starts all of them over.
    ``executor`` has ``submit``, as those of concurrent.futures: it may run things anywhere that sees the directories.
    """
    standings = [JobStatus(cell) if fresh else _before(cell, retry) for cell in cells]
    futures: dict[Future[None], JobStatus] = {}
    for standing in standings:
        if standing.state == WAITING:
            cell = standing.cell
            futures[executor.submit(work, cell.experiment, cell.directory, fresh=fresh)] = standing
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


def _before(cell: Cell, retry: bool) -> JobStatus:
    """By what is in its directory, as far as that is the same run: one that is finished, has failed, or may go on."""
    directory = cell.directory
    if not any((directory / name).exists() for name in (CONFIG, FILE_NAME)):
        return JobStatus(cell)
    try:
        there = read_config(directory)
        different = _differences(cell, there)
        if different:
            sentence = f"holds another run: {different}; choose another --out, or start over with --fresh"
            return JobStatus(cell, REFUSED, sentence)
        if (directory / FILE_NAME).exists():
            return _finished(cell)
        if (directory / ERROR).exists() and not retry:
            return JobStatus(cell, FAILED, f"failed before: {why_it_failed(directory)}")
        threads = there["experiment"].get("threads", cell.experiment.threads)
        return JobStatus(replace(cell, experiment=replace(cell.experiment, threads=threads)))
    except CuberError as error:
        return JobStatus(cell, FAILED, str(error))


def _meanwhile(standing: JobStatus, future: Future[None]) -> None:
    if future.running():
        if standing.state == WAITING:
            standing.state, standing.began = RUNNING, time.monotonic()
            standing.part_at_start = part_done(standing.cell)
        standing.done = part_done(standing.cell)


def _after(standing: JobStatus, future: Future[None]) -> None:
    error = KeyboardInterrupt() if future.cancelled() else future.exception()
    if isinstance(error, KeyboardInterrupt):
        standing.state = STOPPED
        return
    try:
        if error is not None:
            raise error
        ended = _finished(standing.cell)
        standing.state, standing.done, standing.message = ended.state, ended.done, ended.message
    except RefusedError as why:
        standing.state, standing.message = REFUSED, str(why)
    except Exception as why:
        standing.state, standing.message = FAILED, str(why) or type(why).__name__


def _finished(cell: Cell) -> JobStatus:
    result = Result.load(cell.directory)
    bwt = "" if result.bwt is None else f"  BWT {format_number(result.bwt, '+.2f')}"
    return JobStatus(cell, FINISHED, f"ACC {result.acc:.2f}{bwt}", done=1.0)


def part_done(cell: Cell) -> float:
    """How far a run has come, from 0 to 1."""
    try:
        tasks = tasks_of(read_config(cell.directory))
    except CuberError:
        return 0.0
    learnt, epoch = progress(cell.directory)
    return (learnt + epoch / cell.experiment.training().epochs) / tasks if tasks else 0.0


def _differences(cell: Cell, there: Config) -> str:
    """Where a run is another than the one that is asked for."""
    wanted = ready_for_toml(cell.experiment.expected())
    asked = {table: {**there.get(table, {}), **values} for table, values in wanted.items()}
    known = {table: values for table, values in there.items() if table in wanted}
    return listed(list(differences(known, asked).values()))
