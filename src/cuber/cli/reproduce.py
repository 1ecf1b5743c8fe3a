"""``cuber reproduce``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cuber.cli.options import DATA_DIR, option
from cuber.cli.options import out as out_option
from cuber.cli.run import run_cells, with_threads
from cuber.errors import CuberError, needs_extra

if TYPE_CHECKING:
    from cuber.experiments.grid import Cell
    from cuber.experiments.reproduce import Target


def reproduce(
    target: str = typer.Argument(metavar="TARGET", help="table1 to table5, figure-evolution or figure-memory."),
    scale: str = option("short", metavar="NAME", help="full, short (3 seeds, 25 epochs) or smoke (minutes)."),
    source: str | None = option(None, "--from", metavar="DIR", help="Run nothing; show the runs in DIR."),
    benchmarks: str | None = option(None, metavar="NAMES", help="Only these, as in a,b.", show_default="all of it"),
    methods: str | None = option(None, metavar="NAMES", help="Only these, as in a,b.", show_default="all of it"),
    out: str = out_option("reproduced", "DIR", "Directory of the runs and figures."),
    jobs: int | None = option(None, min=1, help="Runs at a time.", show_default="one per core"),
    retry: bool = option(False, "--retry", help="Also run those that have failed before."),
    data_dir: str | None = DATA_DIR,
) -> None:
    """Run and show a table or figure of the paper.

    The same command resumes what is not finished.
    """
    from cuber.experiments.campaign import FAILED, FINISHED, REFUSED, STOPPED
    from cuber.experiments.reproduce import cells_of, find

    for name, directory in (("--out", out), ("--from", source)):
        if directory == "":
            raise CuberError(f"{name} takes a directory, and '' is none")
    jobs = jobs or os.cpu_count() or 1
    folder = Path(out) / scale if source is None else Path(source)
    wanted = [None if text is None else text.split(",") for text in (benchmarks, methods)]
    cells = cells_of(target, scale, folder, benchmarks=wanted[0], methods=wanted[1], data_dir=data_dir)
    states: set[str] = set()
    if source is not None and not folder.is_dir():
        raise CuberError(f"--from takes a directory of runs, and '{source}' is none")
    if source is None:
        for experiment in {cell.experiment.benchmark: cell.experiment for cell in cells}.values():
            experiment.stream()  # a missing dataset is reported before anything starts
        folder.mkdir(parents=True, exist_ok=True)
        cells = with_threads(cells, jobs)
        _announce(target, scale, cells, jobs)
        states = run_cells(cells, folder, jobs, retry=retry)
        if STOPPED in states:
            sys.exit(128 + signal.SIGTERM)
    variants = [path for path in dict.fromkeys(cell.directory.parent for cell in cells) if path.is_dir()]
    if FINISHED in states or source is not None:
        _show(find(target), variants, folder, Path(out))
    if states & {FAILED, REFUSED}:
        sys.exit(1)


def _announce(target: str, scale: str, cells: list[Cell], jobs: int) -> None:
    """Print how many runs there are, and how long they will take."""
    from cuber.core.formatting import pluralize
    from cuber.experiments.reproduce import seconds_needed
    from cuber.runs.result import FILE_NAME

    left = [cell.experiment for cell in cells if not (cell.directory / FILE_NAME).exists()]
    print(f"{target}, {scale}: {pluralize(len(cells), 'run')}, {len(cells) - len(left)} finished", flush=True)
    if left and scale != "smoke":
        print("measuring a few steps of each method on each benchmark ...", flush=True)
        needed = _duration(seconds_needed(left) / min(jobs, len(left)))
        print(f"training will take about {needed}, {jobs} at a time; less where tasks stop early", flush=True)


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
    from cuber.report.comparison import compare
    from cuber.report.console import PlainConsole
    from cuber.report.formats import show_comparison
    from cuber.report.grouping import load_report

    if not paths:
        raise CuberError(f"{folder} has no run of {', '.join(target.methods)}")
    report, shown = load_report(paths), 0
    for table in target.tables:
        comparison = compare(report, None, [table])
        show_comparison(comparison, PlainConsole())
        shown += len(comparison.tables)
    if target.figure is not None:
        with needs_extra("report", "a figure of cuber reproduce"):
            from cuber.report.figures import save_all
        files = save_all(report, out, only=target.figure)
        print("\n".join(map(str, files)))
        shown = len(files)
    if not shown:
        raise CuberError(f"no run in {folder} has finished, so there is nothing to show")
