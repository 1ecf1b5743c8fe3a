"""``cuber reproduce``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cuber.cli.run import DATA_DIR, run_cells
from cuber.errors import CuberError

if TYPE_CHECKING:
    from cuber.experiments.grid import Cell
    from cuber.experiments.reproduce import Target


def reproduce(
    target: str = typer.Argument(metavar="TARGET", help="table1 to table5, figure-evolution or figure-memory."),
    scale: str = typer.Option("short", help="full: as in the paper; short: 3 seeds, 25 epochs; smoke: minutes."),
    source: str | None = typer.Option(None, "--from", metavar="DIR", help="Run nothing; show the runs in DIR."),
    benchmarks: str | None = typer.Option(None, help="Only these of its benchmarks, as in permuted-mnist."),
    methods: str | None = typer.Option(None, help="Only these of its methods, as in trgp,cuber."),
    out: str = typer.Option("reproduced", metavar="DIR", help="Directory of the runs."),
    jobs: int = typer.Option(max(1, (os.cpu_count() or 1)), min=1, help="Number of runs at a time."),
    data_dir: str | None = DATA_DIR,
) -> None:
    """Run what a table or figure of the paper needs, and show it; the same command resumes."""
    from cuber.experiments.campaign import FAILED, REFUSED, STOPPED
    from cuber.experiments.reproduce import cells_of, find

    if source is None and not out:
        raise CuberError("--out takes a directory, and '' is none")
    folder = Path(out) / scale if source is None else Path(source)
    wanted = [None if text is None else text.split(",") for text in (benchmarks, methods)]
    cells = cells_of(target, scale, folder, benchmarks=wanted[0], methods=wanted[1], data_dir=data_dir)
    if source is None:
        _announce(target, scale, cells, jobs)
        states = run_cells(cells, folder, jobs, threads=None)
        if STOPPED in states:
            sys.exit(128 + signal.SIGTERM)
    else:
        states = set()
    paths = list(dict.fromkeys(folder / cell.experiment.benchmark for cell in cells))
    _show(find(target), [path for path in paths if path.is_dir()], folder, Path(out))
    if states & {FAILED, REFUSED}:
        sys.exit(1)


def _announce(target: str, scale: str, cells: list[Cell], jobs: int) -> None:
    """Print how many runs there are, and how long they will take."""
    from cuber.core.formatting import pluralize
    from cuber.experiments.reproduce import seconds_needed
    from cuber.runs.result import FILE_NAME

    left = [cell.experiment for cell in cells if not (cell.directory / FILE_NAME).exists()]
    print(f"{target}, {scale}: {pluralize(len(cells), 'run')}, {len(cells) - len(left)} of them finished", flush=True)
    if left and scale != "smoke":
        print("measuring a few steps of each method on each benchmark ...", flush=True)
        print(
            f"at most about {_duration(seconds_needed(left) / min(jobs, len(left)))} with {jobs} at a time", flush=True
        )


def _duration(seconds: float) -> str:
    """Return a duration in a unit that fits.

    >>> _duration(90), _duration(5400), _duration(200_000)
    ('2 minutes', '1.5 hours', '2.3 days')
    """
    if seconds < 3600:
        return f"{max(1, round(seconds / 60))} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 86400 else f"{seconds / 86400:.1f} days"


def _show(target: Target, paths: list[Path], folder: Path, out: Path) -> None:
    """Print the tables of a target, or draw its figure in ``out``, from the finished runs below ``paths``."""
    from rich.console import Console

    from cuber.report.comparison import compare
    from cuber.report.figures import save_all
    from cuber.report.formats import show_comparison
    from cuber.report.grouping import load_report

    if not paths:
        raise CuberError(f"{folder} has no run of {', '.join(target.methods)}")
    report = load_report(paths)
    for table in target.tables:
        try:
            show_comparison(compare(report, None, [table]), Console())
        except CuberError as error:
            print(f"cuber: {error}", file=sys.stderr)
    if target.figure is not None:
        print("\n".join(map(str, save_all(report, out, only=target.figure))))
