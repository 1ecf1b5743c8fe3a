"""``cuber data``."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import typer

from cuber.cli.help import Command
from cuber.cli.options import DATA_DIR

app = typer.Typer(help="List, download and verify datasets.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def data(context: typer.Context, data_dir: str | None = DATA_DIR) -> None:
    """List every dataset: present, incomplete or missing, its size, its path, its license."""
    context.obj = data_dir
    if context.invoked_subcommand is None:
        from cuber import datasets
        from cuber.report.console import PlainConsole
        from cuber.report.data_listing import show_datasets

        root = datasets.directory(data_dir)
        show_datasets(datasets.statuses(data_dir), root, PlainConsole())


@app.command(cls=Command)
def get(
    context: typer.Context,
    names: list[str] = typer.Argument(metavar="NAME", help="Datasets; see cuber data."),
    data_dir: str | None = DATA_DIR,
) -> None:
    """Download datasets from their official sources.

    Those that are complete are skipped.
    """
    from cuber import datasets
    from cuber.report.console import PlainConsole
    from cuber.report.data_listing import DownloadBar

    data_dir = data_dir or context.obj
    console, root = PlainConsole(), datasets.directory(data_dir)
    for source in [datasets.find(name, data_dir) for name in names]:
        if datasets.is_intact(source.name, root):
            console.print(f"{source.name}: already there", soft_wrap=True)
            continue
        with closing(DownloadBar(source.name, console)) as bar:
            paths = datasets.get(source, root, bar)
        console.print(f"{source.name}: {', '.join(map(str, paths))}", soft_wrap=True, markup=False)
        console.print(f"  license: {source.license}; please cite {source.citation}", soft_wrap=True, markup=False)


@app.command(cls=Command)
def check(
    context: typer.Context,
    names: list[str] | None = typer.Argument(None, metavar="NAME", help="Datasets.", show_default="all on disk"),
    data_dir: str | None = DATA_DIR,
) -> None:
    """Compare files with their official checksums.

    Each file is ok, differs, is missing or has no checksum. The exit code is 1 if one differs or is missing.
    """
    from cuber import datasets
    from cuber.datasets.loading import MISSING, OK, UNKNOWN
    from cuber.report.console import PlainConsole
    from cuber.report.data_listing import show_counts, show_verdicts

    data_dir = data_dir or context.obj
    there = [status.source.name for status in datasets.statuses(data_dir) if status.state != MISSING]
    counts: Counter[str] = Counter()
    for name in names or there:
        counts += show_verdicts(name, datasets.check(name, data_dir), PlainConsole())
    if counts:
        show_counts(counts, PlainConsole())
    else:
        print(f"there is no dataset in {datasets.directory(data_dir)}")
    raise typer.Exit(0 if counts.keys() <= {OK, UNKNOWN} else 1)
