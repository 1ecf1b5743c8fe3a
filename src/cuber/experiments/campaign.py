"""Run a grid of experiments: skip finished runs, isolate failures, report the progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace

from cuber.core.formatting import format_number
from cuber.errors import CuberError
from cuber.experiments.grid import Cell
from cuber.experiments.processes import work
from cuber.experiments.results import DAMAGED, FAILED, FINISHED, RESULT, RUNNING, STOPPED, progress, read, tasks_of
from cuber.runs.config_file import CONFIG, differences, listed, read_config, ready_for_toml
from cuber.runs.lock import RefusedError
from cuber.runs.result import Result

WAITING, REFUSED = "waiting", "refused"
"""States besides those of run directories."""
POLL_SECONDS = 0.5


@dataclass
class JobStatus:
    """State of one experiment of a grid."""

    cell: Cell
    state: str = WAITING
    message: str = ""  # why it failed or was refused, or its ACC and BWT
    done: float = 0.0  # fraction of the epochs, from 0 to 1; too low where tasks stop early
    began: float = 0.0
    done_at_start: float = 0.0

    @property
    def name(self) -> str:
        """Benchmark, variant and seed, as in its directory."""
        return "/".join(self.cell.directory.parts[-3:])

    def seconds_left(self, now: float) -> float | None:
        """Estimate from the speed so far; None while there is none."""
        gained = self.done - self.done_at_start
        return (now - self.began) * (1 - self.done) / gained if self.state == RUNNING and gained > 0 else None

    def update(self, state: str, message: str = "") -> JobStatus:
        """Set state and message."""
        self.state, self.message = state, message
        return self

    def finish(self, result: Result) -> JobStatus:
        """Show the result of the run."""
        bwt = "" if result.bwt is None else f"  BWT {format_number(result.bwt, '+.2f')}"
        self.done = 1.0
        return self.update(FINISHED, f"ACC {result.acc:.2f}{bwt}")


def run_grid(
    cells: Sequence[Cell],
    executor: Executor,
    *,
    retry: bool = False,
    fresh: bool = False,
    watch: Callable[[Sequence[JobStatus]], None] | None = None,
) -> list[JobStatus]:
    """Run all experiments that are not finished; a resumed run keeps its number of threads.

    Args:
        executor: Any object with the ``submit`` of ``concurrent.futures`` whose workers can access the directories.
        retry: Run failed experiments again.
        fresh: Start all experiments over.
        watch: Called with all states about twice per second.
    """
    jobs = [JobStatus(cell) if fresh else _previous(cell, retry) for cell in cells]
    futures = {
        executor.submit(work, job.cell.experiment, job.cell.directory, fresh=fresh): job
        for job in jobs
        if job.state == WAITING
    }
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            _end(futures[future], future)
        for job in (futures[future] for future in pending if future.running()):
            job.done = part_done(job.cell)
            if job.state == WAITING:
                job.state, job.began, job.done_at_start = RUNNING, time.monotonic(), job.done
        if watch is not None:
            watch(jobs)
    return jobs


def _previous(cell: Cell, retry: bool) -> JobStatus:
    """The state that the directory of an experiment records."""
    job = JobStatus(cell)
    if not any((cell.directory / name).exists() for name in (CONFIG, RESULT)):
        return job
    run = read(cell.directory)
    if run.state == DAMAGED:
        return job.update(FAILED, run.reason)
    wanted = ready_for_toml(cell.experiment.expected())
    asked = {table: {**run.config.get(table, {}), **values} for table, values in wanted.items()}
    known = {table: values for table, values in run.config.items() if table in wanted}
    if different := listed(list(differences(known, asked).values())):
        return job.update(REFUSED, f"holds another run: {different}; choose another --out, or start over with --fresh")
    if run.result is not None:
        return job.finish(run.result)
    if run.state == FAILED and not retry:
        return job.update(FAILED, f"failed before: {run.reason}")
    threads = run.about.get("threads", cell.experiment.threads)
    return JobStatus(replace(cell, experiment=replace(cell.experiment, threads=threads)))


def _end(job: JobStatus, future: Future[None]) -> None:
    try:
        future.result()
        job.finish(Result.load(job.cell.directory))
    except (KeyboardInterrupt, CancelledError):
        job.update(STOPPED)
    except RefusedError as why:
        job.update(REFUSED, str(why))
    except Exception as why:
        job.update(FAILED, str(why) or type(why).__name__)


def part_done(cell: Cell) -> float:
    """Progress of a run by its log, from 0 to 1."""
    try:
        tasks = tasks_of(read_config(cell.directory))
    except CuberError:
        return 0.0
    learned, epoch = progress(cell.directory)
    return (learned + epoch / cell.experiment.training().epochs) / tasks if tasks else 0.0
