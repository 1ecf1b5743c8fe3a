"""The command line. Commands import torch when they run, so that ``cuber --help`` is fast."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import typer

from cuber.cli.data import app as data_app
from cuber.cli.help import Command
from cuber.cli.options import AGAINST, option
from cuber.cli.options import out as out_option
from cuber.cli.reproduce import reproduce
from cuber.cli.run import grid, run
from cuber.core.docstrings import docstring
from cuber.core.encoding import is_unicode, printable, replace_unencodable
from cuber.errors import CuberError, needs_extra, unknown
from cuber.version import __version__

INTERRUPTED = 130
WIDTH = 120
"""Columns of tables that are written to a file."""

app = typer.Typer(
    help="Continual learning with backward knowledge transfer.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.command(cls=Command)(run)
app.command(cls=Command)(grid)
app.command(cls=Command)(reproduce)


RUNS: Any = typer.Argument(metavar="DIR", help="Run directories, or folders of them.")


@app.callback(invoke_without_command=True)
def cuber(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        print(f"cuber {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(name="list", cls=Command)
def list_(
    as_json: bool = option(False, "--json", help="Print one JSON object instead: benchmarks and methods."),
) -> None:
    """List the benchmarks, and the methods with their settings."""
    from cuber.experiments import listing
    from cuber.report import show_catalogue
    from cuber.report.console import PlainConsole

    benchmarks, methods = listing.benchmarks(), listing.methods()
    if as_json:
        print(listing.as_json(benchmarks, methods))
    else:
        show_catalogue(benchmarks, methods, PlainConsole())


@app.command(cls=Command)
def compare(
    directories: list[str] = RUNS,
    against: str | None = AGAINST,
    table: list[str] = option(
        [],
        metavar="NAME",
        help="acc, differences, selected, forward, sweep, time or memory; repeatable.",
        show_default="all",
    ),
    format: str = option("table", metavar="NAME", help="table, markdown, latex, csv or json."),
    out: str | None = out_option(None, "FILE", "Write the tables there instead."),
) -> None:
    """Show the results of finished runs, beside the paper's."""
    from cuber.core.formatting import pluralize
    from cuber.report.comparison import compare as compare_runs
    from cuber.report.formats import FORMATS, as_json, remarks, show_comparison
    from cuber.report.grouping import load_report
    from cuber.report.model import missing_text
    from cuber.runs.files import write_atomically

    if out is not None and (not out or Path(out).is_dir()):
        raise CuberError(f"--out takes the name of a file, and '{out}' is a directory")
    if format not in ("table", *FORMATS):
        raise unknown("format", format, ("table", *FORMATS))
    comparison = compare_runs(load_report(directories), against, table)
    text = io.StringIO()
    if format == "table":
        from cuber.report.console import PlainConsole

        show_comparison(comparison, PlainConsole() if out is None else PlainConsole(file=text, width=WIDTH))
    elif format == "json":  # which can escape characters that the output lacks
        text.write(as_json(comparison, ensure_ascii=out is None and not is_unicode(sys.stdout.encoding)) + "\n")
    else:
        text.write(FORMATS[format](comparison) + "\n")
    if out is None:
        print(text.getvalue(), end="")
    elif comparison.tables:
        write_atomically(Path(out), text.getvalue())
        print(f"{out}: {pluralize(len(comparison.tables), 'table')}")
    if format == "csv":  # which cannot hold remarks
        for remark in remarks(comparison):
            print(f"cuber: {remark}", file=sys.stderr)
    if not comparison.tables:
        missing = missing_text(comparison.unfinished)
        raise CuberError(f"there is no finished run, so there is nothing to compare: {missing}")


@app.command(cls=Command)
def report(
    runs: list[str] = RUNS,
    out: str = out_option("report.html", "FILE", "The page to write.", earlier=("--output",)),
    figures: str | None = option(None, metavar="DIR", help="Also write each figure there, as SVG and PNG."),
    against: str | None = AGAINST,
    methods: str | None = option(None, metavar="NAMES", help="Methods to show, as in cuber,trgp.", show_default="all"),
    tasks: str | None = option(
        None, metavar="NUMBERS", help="Tasks in figures by task, as in 0-3,9.", show_default="all"
    ),
) -> None:
    """Write one HTML page with the tables and figures of runs.

    The page needs no network to open.
    """
    page = Path(out)
    if page.is_dir() or not page.name:
        raise CuberError(f"--out takes the name of a file, and '{out}' is a directory")
    if figures is not None and Path(figures).exists() and not Path(figures).is_dir():
        raise CuberError(f"--figures takes a directory, and '{figures}' is a file")
    from cuber.core.formatting import pluralize
    from cuber.experiments.grid import numbers
    from cuber.report.grouping import load_report
    from cuber.report.model import missing_text
    from cuber.runs.files import write_atomically

    with needs_extra("report", "cuber report"):
        from cuber.report.figures import save_all
        from cuber.report.page import render

    loaded = load_report(runs)
    if methods is not None:
        loaded = loaded.only(methods.split(","))
    if tasks is not None:
        loaded = loaded.showing(numbers(tasks, "task"))
    text = render(loaded, against)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, text)
    counts = filter(None, [pluralize(loaded.runs, "finished run"), missing_text(loaded.unfinished)])
    print(f"{page}: {', '.join(counts)}")
    if figures is not None:
        print(f"{figures}: {len(save_all(loaded, Path(figures)))} files")


@app.command(cls=Command)
def theory(
    kind: str = typer.Argument("logistic", help="least-squares, logistic or network."),
    angles: int = option(13, help="Number of angles, from 0 to 180 degrees."),
    steps: int = option(20, help="Steps of each rule."),
    step_size: float | None = option(
        None, metavar="X", help="Of both rules.", show_default="0.9 times the bound of theorem 1"
    ),
    old_steps: int = option(2, help="Training steps of the old task."),
    seed: int = option(0, help="Seed of both tasks."),
    out: str = out_option("theory", "NAME", "Write NAME.svg and NAME.png.", earlier=("--output",)),
) -> None:
    """Rotate a new task away from an old one.

    Shows at which angles the theorems hold, and which rule is better for the old task.
    """
    path = Path(out)
    if not path.name or path.is_dir():
        raise CuberError(f"--out takes the name of a figure, and '{out}' is a directory")
    from cuber.report.console import PlainConsole
    from cuber.theory.sweep import sweep
    from cuber.training import check_seed

    with needs_extra("report", "cuber theory"):
        from cuber.report.drawing import save, styled
        from cuber.report.theory_sweep import show_sweep, sweep_figure

    check_seed(seed)
    swept = sweep(kind, angles=angles, seed=seed, steps=steps, step_size=step_size, old_steps=old_steps)
    show_sweep(swept, PlainConsole())
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() in (".svg", ".png"):
        path = path.with_suffix("")
    with styled():
        files = save(sweep_figure(swept), path)
    print(f"{' and '.join(map(str, files))}: the figure")


for each in (app, data_app):
    for command in each.registered_commands:
        command.help = docstring(command.callback) if command.callback else None


def main(arguments: list[str] | None = None) -> None:
    """Entry point: print errors of the user as one sentence, and exit with code 2."""
    for stream in (sys.stdout, sys.stderr):
        replace_unencodable(stream)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"cuber: warning: {printable(str(message))}", file=sys.stderr)
        code, sentence = 2, ""
        try:
            code = app(arguments, prog_name="cuber", standalone_mode=False)
        except CuberError as error:
            sentence = str(error)
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except OSError as error:
            sentence = f"cannot read or write {error.filename or 'the output'}: {error.strerror or error}"
        except Exception as error:
            # Errors of typer about options and commands; their classes differ from version to version.
            if not hasattr(error, "format_message"):
                raise
            sentence = error.format_message()
    if sentence or code == INTERRUPTED:
        print(f"cuber: {printable(' '.join(sentence.split())) or 'interrupted'}", file=sys.stderr)
    sys.exit(code)
