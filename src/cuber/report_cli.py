"""``cuber report``: thin; parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuber.errors import CuberError


def report(
    runs: Annotated[list[str], typer.Argument(metavar="DIR...", help="Run directories, or folders of them.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = "report.html",
    figures: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write each figure as SVG and PNG there too.")
    ] = None,
) -> None:
    """Write one HTML page with the tables and figures of runs; it opens anywhere and needs no network."""
    page = Path(output)
    if page.is_dir() or not page.name:
        raise CuberError(f"--output takes the name of a file, and '{output}' is a directory")
    from cuber.report.figures import save_all
    from cuber.report.page import render
    from cuber.report.reading import read

    content = read(runs)
    text = render(content)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    missing = f", {len(content.unfinished)} not finished" if content.unfinished else ""
    print(f"{page}: {content.runs} finished runs{missing}")
    if figures is not None:
        print(f"{figures}: {len(save_all(content, Path(figures)))} files")
