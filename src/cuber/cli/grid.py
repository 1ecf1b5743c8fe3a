"""``cuber grid``."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path
from typing import Any

import typer

from cuber.cli.options import with_experiment_options
from cuber.errors import CuberError

FAILURES = 1


@with_experiment_options("epochs")
def grid(
    what: list[str] = typer.Argument(metavar="BENCHMARK...", help="Benchmarks to learn; or one TOML file."),
    methods: str | None = typer.Option(None, help="Methods, as in cuber,trgp,gpm (default: cuber)."),
    seeds: str | None = typer.Option(None, help="Seeds, as in 0-4 or 0,2,5 (default: 0-4)."),
    out: str = typer.Option("runs", metavar="DIR", help="Directory of the run directories."),
    jobs: int = typer.Option(1, min=1, help="Number of runs at a time."),
    threads: int | None = typer.Option(None, help="Threads of each new run (default: cores divided by jobs)."),
    settings: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE,...", help="Hyper-parameter of the methods that have it; each value is tried."
    ),
    retry: bool = typer.Option(False, "--retry", help="Also run those that have failed before."),
    fresh: bool = typer.Option(False, "--fresh", help="Start all of them over."),
    **fields: Any,
) -> None:
    """Run every combination of methods, seeds and settings; the same command resumes unfinished runs."""
    from rich.console import Console

    from cuber.experiments.campaign import FAILED, REFUSED, STOPPED, run_grid
    from cuber.experiments.grid import grid as make_grid
    from cuber.experiments.grid import numbers, read_grid
    from cuber.experiments.processes import LocalProcesses
    from cuber.report.live import GridLines, GridTable
    from cuber.report.terminal import show_outcome

    fixed = {name: value for name, value in fields.items() if value is not None}
    if len(what) == 1 and what[0].endswith(".toml"):
        several = {"methods": methods, "seeds": seeds, "settings": settings or None}
        also = [*(name for name, value in several.items() if value is not None), *fixed]
        if also:
            raise CuberError(f"with a grid file, set {', '.join(also)} in the file")
        cells = read_grid(what[0], out)
    else:
        # An empty text, as from an unset variable of a shell, is not replaced by the default.
        methods, seeds = "cuber" if methods is None else methods, "0-4" if seeds is None else seeds
        cells = make_grid(out, what, methods.split(","), numbers(seeds), _values(settings), **fixed)
    share = max(1, (os.cpu_count() or 1) // jobs)
    cells = [
        dataclasses.replace(cell, experiment=dataclasses.replace(e, threads=chosen))
        for cell in cells
        for e in [cell.experiment]
        for chosen in [threads if threads is not None else e.threads or e.preset.threads or share]
    ]
    console, executor = Console(), LocalProcesses(jobs)
    signal.signal(signal.SIGTERM, lambda *_: executor.stop())
    with (GridTable if console.is_terminal else GridLines)(console) as watch:
        try:
            jobs_done = run_grid(cells, executor, retry=retry, fresh=fresh, watch=watch)
        except KeyboardInterrupt:
            executor.stop(signal.SIGINT)
            executor.shutdown()
            raise
    show_outcome(jobs_done, Path(out), console)
    states = {job.state for job in jobs_done}
    if STOPPED in states:
        sys.exit(128 + signal.SIGTERM)
    if states & {FAILED, REFUSED}:
        sys.exit(FAILURES)


def _values(assignments: list[str]) -> dict[str, list[Any]]:
    """Parse ``["eps2=0,0.1"]`` to ``{"eps2": [0, 0.1]}``."""
    from cuber.core.settings import parse_settings, read_value

    values: dict[str, list[Any]] = {}
    for name, text in parse_settings(assignments).items():
        whole = read_value(f"[{text}]")
        values[name] = whole if isinstance(whole, list) else [read_value(part) for part in text.split(",")]
    return values
