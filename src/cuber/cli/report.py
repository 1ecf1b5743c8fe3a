"""``cuber report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuber.errors import CuberError


def report(
    runs: Annotated[list[str], typer.Argument(metavar="DIR...", help="Run directories, or folders of them.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = "report.html",
    figures: Annotated[
        str | None, typer.Option(metavar="DIR", help="Also write each figure there, as SVG and PNG.")
    ] = None,
) -> None:
    """Write one HTML page with the tables and figures of runs; it needs no network to open."""
    page = Path(output)
    if page.is_dir() or not page.name:
        raise CuberError(f"--output takes the name of a file, and '{output}' is a directory")
    if figures is not None and Path(figures).exists() and not Path(figures).is_dir():
        raise CuberError(f"--figures takes a directory, and '{figures}' is a file")
    from cuber.core.formatting import pluralize
    from cuber.report.figures import save_all
    from cuber.report.grouping import load_report
    from cuber.report.page import render
    from cuber.runs.files import write_atomically

    loaded = load_report(runs)
    text = render(loaded)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, text)
    missing = f", {len(loaded.unfinished)} not finished" if loaded.unfinished else ""
    print(f"{page}: {pluralize(loaded.runs, 'finished run')}{missing}")
    if figures is not None:
        print(f"{figures}: {len(save_all(loaded, Path(figures)))} files")
