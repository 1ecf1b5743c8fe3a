"""The command line. Commands import torch when they run, so that ``cuber --help`` is fast."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import typer

from cuber.cli.data import app as data_app
from cuber.cli.reproduce import reproduce
from cuber.cli.run import grid, run
from cuber.core.encoding import is_unicode, replace_unencodable
from cuber.errors import CuberError, needs_extra, unknown
from cuber.version import __version__

INTERRUPTED = 130

app = typer.Typer(
    help="Continual learning with backward knowledge transfer.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.command()(run)
app.command()(grid)
app.command()(reproduce)


@app.callback(invoke_without_command=True)
def cuber(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        print(f"cuber {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(name="list")
def list_() -> None:
    """List the benchmarks, and the methods with their hyper-parameters."""
    from rich.console import Console

    from cuber.experiments import listing
    from cuber.report import show_catalogue

    show_catalogue(listing.benchmarks(), listing.methods(), Console())


@app.command()
def compare(
    directories: list[str] = typer.Argument(metavar="DIR...", help="Run directories, or folders of them."),
    against: str | None = typer.Option(None, metavar="NAME", help="Variant to test others against (default: trgp)."),
    table: list[str] = typer.Option(
        [], metavar="NAME", help="acc, differences, selected, forward, sweep, time, memory; repeatable (default: all)."
    ),
    format: str = typer.Option("table", metavar="FORMAT", help="table, markdown, latex, csv or json."),
) -> None:
    """Show the results of finished runs over seeds, beside the paper's."""
    from cuber.report.comparison import compare as compare_runs
    from cuber.report.formats import FORMATS, as_json, remarks, show_comparison
    from cuber.report.grouping import load_report

    if format not in ("table", *FORMATS):
        raise unknown("format", format, ("table", *FORMATS))
    comparison = compare_runs(load_report(directories), against, table)
    if format == "table":
        from rich.console import Console

        show_comparison(comparison, Console())
    elif format == "json":  # which can escape characters that the output lacks
        print(as_json(comparison, ensure_ascii=not is_unicode(sys.stdout.encoding)))
    else:
        print(FORMATS[format](comparison))
    if format == "csv":  # which cannot hold remarks
        for remark in remarks(comparison):
            print(f"cuber: {remark}", file=sys.stderr)
    if not comparison.tables:
        runs = len(comparison.unfinished)
        none = "the only run has not" if runs == 1 else f"none of {runs} runs has"
        raise CuberError(f"{none} finished, so there is nothing to compare")


@app.command()
def report(
    runs: list[str] = typer.Argument(metavar="DIR...", help="Run directories, or folders of them."),
    output: str = typer.Option("report.html", "--output", "-o", metavar="FILE", help="The page to write."),
    figures: str | None = typer.Option(None, metavar="DIR", help="Also write each figure there, as SVG and PNG."),
    against: str | None = typer.Option(None, metavar="NAME", help="Variant to test others against (default: trgp)."),
) -> None:
    """Write one HTML page with the tables and figures of runs; it needs no network to open."""
    page = Path(output)
    if page.is_dir() or not page.name:
        raise CuberError(f"--output takes the name of a file, and '{output}' is a directory")
    if figures is not None and Path(figures).exists() and not Path(figures).is_dir():
        raise CuberError(f"--figures takes a directory, and '{figures}' is a file")
    from cuber.core.formatting import pluralize
    from cuber.report.grouping import load_report
    from cuber.runs.files import write_atomically

    with needs_extra("report", "cuber report"):
        from cuber.report.figures import save_all
        from cuber.report.page import render

    loaded = load_report(runs)
    text = render(loaded, against)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, text)
    missing = f", {len(loaded.unfinished)} not finished" if loaded.unfinished else ""
    print(f"{page}: {pluralize(loaded.runs, 'finished run')}{missing}")
    if figures is not None:
        print(f"{figures}: {len(save_all(loaded, Path(figures)))} files")


@app.command()
def theory(
    kind: str = typer.Argument("logistic", help="Problem: least-squares, logistic or network."),
    angles: int = typer.Option(13, help="Number of angles, from 0 to 180 degrees."),
    steps: int = typer.Option(20, help="Steps of each rule."),
    step_size: float | None = typer.Option(None, help="Of both rules (default: 0.9 times the bound of theorem 1)."),
    old_steps: int = typer.Option(2, help="Training steps of the old task."),
    seed: int = typer.Option(0, help="Seed of both tasks."),
    output: str = typer.Option("theory", "--output", "-o", metavar="NAME", help="Write NAME.svg and NAME.png."),
) -> None:
    """Rotate a new task away from an old one, and show where the theorems hold and which rule is better."""
    path = Path(output)
    if not path.name or path.is_dir():
        raise CuberError(f"--output takes the name of a figure, and '{output}' is a directory")
    from rich.console import Console

    from cuber.theory.sweep import sweep
    from cuber.training import check_seed

    with needs_extra("report", "cuber theory"):
        from cuber.report.drawing import save, styled
        from cuber.report.theory_sweep import show_sweep, sweep_figure

    check_seed(seed)
    swept = sweep(kind, angles=angles, seed=seed, steps=steps, step_size=step_size, old_steps=old_steps)
    show_sweep(swept, Console())
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() in (".svg", ".png"):
        path = path.with_suffix("")
    with styled():
        files = save(sweep_figure(swept), path)
    print(f"{' and '.join(map(str, files))}: the figure")


def main(arguments: list[str] | None = None) -> None:
    """Entry point: print errors of the user as one sentence, and exit with code 2."""
    for stream in (sys.stdout, sys.stderr):
        replace_unencodable(stream)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"cuber: warning: {message}", file=sys.stderr)
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
        print(f"cuber: {' '.join(sentence.split()) or 'interrupted'}", file=sys.stderr)
    sys.exit(code)
