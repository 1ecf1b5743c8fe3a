"""``cuber compare``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cuber.core.encoding import is_unicode
from cuber.errors import CuberError, unknown

TABLE = "table"


def compare(
    directories: Annotated[list[str], typer.Argument(metavar="DIR...", help="Run directories, or folders of them.")],
    against: Annotated[
        str | None, typer.Option(metavar="NAME", help="Variant to test the others against (default: trgp).")
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="acc, differences, selected, forward, sweep, time or memory; may be repeated (default: all).",
        ),
    ] = None,
    format: Annotated[str, typer.Option(metavar="FORMAT", help="table, markdown, latex, csv or json.")] = TABLE,
) -> None:
    """Show what finished runs came to over seeds, beside the paper's figures."""
    from cuber.report.comparison import compare as compare_runs
    from cuber.report.formats import FORMATS, as_json, remarks, show_comparison
    from cuber.report.grouping import load_report

    if format not in (TABLE, *FORMATS):
        raise unknown("format", format, (TABLE, *FORMATS))
    comparison = compare_runs(load_report(directories), against, table or [])
    if format == TABLE:
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
