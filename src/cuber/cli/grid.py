"""``cuber grid``: thin; parse, call, print."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cuber.cli.data import DataDir
from cuber.errors import CuberError

FAILURES = 1


def grid(
    what: Annotated[list[str], typer.Argument(metavar="BENCHMARK...", help="What to learn; or one TOML file.")],
    methods: Annotated[str | None, typer.Option(help="How to learn it, as in cuber,trgp,gpm; else cuber.")] = None,
    seeds: Annotated[str | None, typer.Option(help="As in 0-4 or 0,2,5; else 0-4.")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="A directory for each run is made in it.")] = "runs",
    jobs: Annotated[int, typer.Option(min=1, help="How many runs at a time.")] = 1,
    threads: Annotated[
        int | None, typer.Option(help="For each run that begins; else the cores are divided among the jobs.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE,...", help="A setting of the methods that have it; each value is tried."
        ),
    ] = None,
    tasks: Annotated[int | None, typer.Option(help="Learn only the first so many tasks.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over each task's training data.")] = None,
    train_per_task: Annotated[int | None, typer.Option(help="At most so many training samples.")] = None,
    test_per_task: Annotated[int | None, typer.Option(help="At most so many test samples.")] = None,
    protocol: Annotated[str | None, typer.Option(help="As in cuber run.")] = None,
    data_dir: DataDir = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try those again that have failed before.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start all of them over, whatever is there.")] = False,
) -> None:
    """Run every combination of methods, seeds and settings; the same command again goes on with what is left."""
    from rich.console import Console

    from cuber.experiments.campaign import FAILED, REFUSED, STOPPED, run_grid
    from cuber.experiments.grid import grid as make_grid
    from cuber.experiments.grid import numbers, read_grid
    from cuber.experiments.processes import LocalProcesses
    from cuber.report.live import GridLines, GridTable
    from cuber.report.terminal import show_outcome

    names = ("tasks", "epochs", "train_per_task", "test_per_task", "protocol", "data_dir")
    values = (tasks, epochs, train_per_task, test_per_task, protocol, data_dir)
    fixed: dict[str, Any] = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    if len(what) == 1 and what[0].endswith(".toml"):
        also = {"--methods": methods, "--seeds": seeds, "--set": settings, **fixed}
        given = [name for name, value in also.items() if value is not None]
        if given:
            raise CuberError(f"with a file, {', '.join(given)} must be said in it")
        cells = read_grid(what[0], out)
    else:
        # What is empty, as an unset variable of a shell is, does not stand for the usual ones.
        methods, seeds = "cuber" if methods is None else methods, "0-4" if seeds is None else seeds
        cells = make_grid(out, what, methods.split(","), numbers(seeds), _values(settings or []), **fixed)
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
            standings = run_grid(cells, executor, retry=retry, fresh=fresh, watch=watch)
        except KeyboardInterrupt:
            executor.stop(signal.SIGINT)
            executor.shutdown()
            raise
    show_outcome(standings, Path(out), console)
    states = {standing.state for standing in standings}
    if STOPPED in states:
        sys.exit(128 + signal.SIGTERM)
    if states & {FAILED, REFUSED}:
        sys.exit(FAILURES)


def _values(assignments: list[str]) -> dict[str, list[Any]]:
    """``["eps2=0,0.1"]`` as ``{"eps2": [0, 0.1]}``."""
    from cuber.core.settings import parse_settings, read_value

    values: dict[str, list[Any]] = {}
    for name, text in parse_settings(assignments).items():
        whole = read_value(f"[{text}]")
        values[name] = whole if isinstance(whole, list) else [read_value(part) for part in text.split(",")]
    return values
