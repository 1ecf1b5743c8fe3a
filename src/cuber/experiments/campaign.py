"""Run a grid of experiments: skip finished runs, isolate failures, report the progress."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace
from typing import Any

from cuber.core.formatting import format_number
from cuber.errors import CuberError
from cuber.experiments.grid import Cell
from cuber.experiments.processes import work
from cuber.experiments.results import DAMAGED, FAILED, FINISHED, RESULT, RUNNING, STOPPED, progress, read, tasks_of
from cuber.runs.config_file import CONFIG, differences, listed, read_config, ready_for_toml
from cuber.runs.directory import LOG
from cuber.runs.lock import LEASE_SECONDS, InUseError, RefusedError, heartbeat, is_held
from cuber.runs.result import Result

WAITING, REFUSED, ELSEWHERE = "waiting", "refused", "elsewhere"
"""States besides those of run directories; elsewhere: another process runs it."""
POLL_SECONDS, LOOK_SECONDS = 0.5, 2.0
"""Between looks at the runs of this process, and at one that another process has."""


@dataclass
class JobStatus:
    """State of one experiment of a grid."""

    cell: Cell
    state: str = WAITING
    message: str = ""  # why it failed or was refused, or its ACC and BWT
    done: float = 0.0  # fraction of the epochs, from 0 to 1; too low where tasks stop early
    began: float = 0.0
    done_at_start: float = 0.0
    log_before: int | None = None  # bytes of the log when the experiment was submitted
    look_at: float = 0.0  # when to see whether another process still has it
    beat: tuple[int, int] | None = None  # the last heartbeat of another machine that has it
    beat_seen: float = -math.inf

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

    def wait_for_others(self) -> None:
        """Another process has it: look again later."""
        self.look_at = time.monotonic() + LOOK_SECONDS
        self.update(ELSEWHERE)

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
    join: bool = False,
    jobs: int | None = None,
    recording: Mapping[str, Any] | None = None,
    watch: Callable[[Sequence[JobStatus]], None] | None = None,
) -> list[JobStatus]:
    """Run all experiments that are not finished; a resumed run keeps its number of threads.

    Args:
        executor: Any object with the ``submit`` of ``concurrent.futures`` whose workers can access the directories.
        retry: Run failed experiments again.
        fresh: Start all experiments over.
        join: Share the experiments with other processes: wait for those that others run, instead of refusing them.
        jobs: Maximum number of experiments that are submitted at a time (default: all).
        recording: What runs write besides their results: ``log``, ``checkpoint_every`` and ``theory`` of
            :func:`~cuber.experiments.processes.work`.
        watch: Called with all states about twice per second.
    """
    states = [JobStatus(cell) if fresh else _previous(cell, retry) for cell in cells]
    queue = [job for job in states if job.state == WAITING]
    if join and queue:  # each process begins at a place of its own, so that they rarely meet
        first = secrets.randbelow(len(queue))
        queue = queue[first:] + queue[:first]
    futures: dict[Future[None], JobStatus] = {}
    while queue or futures:
        for job in list(queue):
            if getattr(executor, "stopped", False):
                job.update(STOPPED)
            elif jobs is not None and len(futures) >= jobs:
                break
            elif join and not _look_again(job, retry):
                continue
            queue.remove(job)
            if job.state == WAITING:
                job.log_before = _log_size(job.cell)
                how = {"fresh": fresh, **(recording or {})}
                futures[executor.submit(work, job.cell.experiment, job.cell.directory, **how)] = job
        if futures:
            done = wait(futures, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done
        else:
            done = set()
            time.sleep(POLL_SECONDS if queue else 0)
        for future in done:
            job = futures.pop(future)
            _end(job, future, join)
            if job.state == ELSEWHERE:
                queue.append(job)
        for future, job in futures.items():
            job.done = part_done(job.cell)
            # Engines do not say when a queued call begins, but its log does.
            if job.state == WAITING and (future.running() or _log_size(job.cell) != job.log_before):
                job.state, job.began, job.done_at_start = RUNNING, time.monotonic(), job.done
        if watch is not None:
            watch(states)
    return states


def _look_again(job: JobStatus, retry: bool) -> bool:
    """Update a queued experiment that other processes may have begun or ended; return whether to take it now."""
    now = time.monotonic()
    if now < job.look_at:
        return False
    # What another process has just tried is not tried again.
    found = _previous(job.cell, retry and job.state == WAITING)
    held = found.state == WAITING and is_held(job.cell.directory)
    if held is None:  # another machine holds it, as long as its heart beats
        beat = heartbeat(job.cell.directory)
        if beat != job.beat:
            job.beat, job.beat_seen = beat, now
        held = now - job.beat_seen < LEASE_SECONDS
    if held:
        job.done = part_done(job.cell)
        job.wait_for_others()
        return False
    job.cell, job.done = found.cell, found.done
    job.update(found.state, found.message)
    return True


def _previous(cell: Cell, retry: bool) -> JobStatus:
    """The state that the directory of an experiment records."""
    job = JobStatus(cell)
    if not any((cell.directory / name).exists() for name in (CONFIG, RESULT)):
        return job
    run = read(cell.directory)
    if run.state == DAMAGED:  # its files must be repaired, or replaced by --fresh: --retry would not help
        return job.update(REFUSED, run.reason)
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


def _end(job: JobStatus, future: Future[None], join: bool) -> None:
    try:
        future.result()
        job.finish(Result.load(job.cell.directory))
    except (KeyboardInterrupt, CancelledError):
        job.update(STOPPED)
    except RefusedError as why:
        if join and isinstance(why, InUseError):
            job.wait_for_others()
        else:
            job.update(REFUSED, str(why))
    except Exception as why:
        job.update(FAILED, str(why) or type(why).__name__)


def _log_size(cell: Cell) -> int | None:
    try:
        return (cell.directory / LOG).stat().st_size
    except OSError:
        return None


def part_done(cell: Cell) -> float:
    """Progress of a run by its log, from 0 to 1."""
    try:
        tasks = tasks_of(read_config(cell.directory))
    except CuberError:
        return 0.0
    learned, epoch = progress(cell.directory)
    if cell.experiment.boundaries:  # any number of tasks may be found, with as many epochs as their samples make
        learned, epoch = min(learned, tasks or 0), 0
    return (learned + epoch / cell.experiment.training().epochs) / tasks if tasks else 0.0
