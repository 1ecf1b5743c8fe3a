"""``cuber report``: thin; parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuber.errors import CuberError

if TYPE_CHECKING:
    from cuber.report.content import Content


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
    if figures is not None and Path(figures).exists() and not Path(figures).is_dir():
        raise CuberError(f"--figures takes a directory, and '{figures}' is a file")
    from cuber.core.formatting import pluralize
    from cuber.report.figures import save_all
    from cuber.report.page import render
    from cuber.runs.files import write_atomically

    content = _content(runs)
    text = render(content)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, text)
    missing = f", {len(content.unfinished)} not finished" if content.unfinished else ""
    print(f"{page}: {pluralize(content.runs, 'finished run')}{missing}")
    if figures is not None:
        print(f"{figures}: {len(save_all(content, Path(figures)))} files")


def _content(paths: list[str]) -> Content:
    """The finished runs by benchmark and variant, and the others."""
    from cuber.experiments.results import load
    from cuber.experiments.variants import group
    from cuber.report.content import Benchmark, Content, Unfinished, Variant

    runs = load(paths)
    benchmarks = [
        Benchmark(
            found.title, [Variant(v.label, [r.to_dict() for r in v.results]) for v in found.variants], found.notes
        )
        for found in group(runs)
    ]
    unfinished = [Unfinished(str(run.directory), run.name, run.reason) for run in runs if run.result is None]
    return Content(benchmarks, unfinished)
