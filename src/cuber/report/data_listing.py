"""Print the state of the datasets, and the progress of downloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from cuber.core.formatting import pluralize
from cuber.datasets.loading import INCOMPLETE, MISMATCH, MISSING, OK, PRESENT, UNKNOWN, FileCheck, Status

COLORS = {PRESENT: "green", INCOMPLETE: "yellow", MISSING: "red", OK: "green", MISMATCH: "red", UNKNOWN: "yellow"}


def show_datasets(statuses: Iterable[Status], root: Path, console: Console) -> None:
    """Print one row for each set, and below it what is missing, with paths below the data directory."""
    console.print(Text(f"in {root}  (another: --data-dir or CUBER_DATA)", style="dim"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("set", "state", "size", "where", "license"):
        table.add_column(heading, overflow="fold")
    for status in statuses:
        source = status.source
        size = status.size or source.size
        where = Text(_below(root, status.places[0]))
        if status.missing:
            more = f" and {len(status.missing) - 1} more" if len(status.missing) > 1 else ""
            where.append(f"\nlacks {_below(root, status.missing[0])}{more}", style="dim")
        if status.state == MISSING:
            hint = source.command if source.downloads else f"see {source.command}"
            where.append(f"\n{hint}", style="dim")
        state = Text(status.state, style=COLORS[status.state])
        if status.layout:
            state.append(f"\n{status.layout}", style="dim")
        megabytes = f"{max(1, round(size / 1e6))} MB" if size else "-"
        table.add_row(Text(source.name, style="bold"), state, megabytes, where, Text(source.license))
    console.print(table)


def show_verdicts(name: str, verdicts: Iterable[FileCheck], console: Console) -> Counter[str]:
    """Print each file's verdict as it comes, those without a checksum as a number; return how many have which."""
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        counts[verdict.state] += 1
        if verdict.state == UNKNOWN:
            continue
        line = Text.assemble(f"{name}  ", (verdict.state, COLORS[verdict.state]), f"  {verdict.path}")
        if verdict.state == MISMATCH:
            line.append(f"  (md5 {verdict.actual}, official {verdict.expected})")
        console.print(line, soft_wrap=True)
    if counts[UNKNOWN]:
        number = pluralize(counts[UNKNOWN], "file")
        console.print(Text.assemble(f"{name}  ", (UNKNOWN, COLORS[UNKNOWN]), f"  {number}"), soft_wrap=True)
    return counts


def show_counts(counts: Mapping[str, int], console: Console) -> None:
    """Print how many files have which verdict: "12 files: 10 ok, 1 differs, 1 no checksum"."""
    shown = [f"{counts[state]:,} {state}" for state in (OK, MISMATCH, MISSING, UNKNOWN) if counts.get(state)]
    console.print(Text(f"{pluralize(sum(counts.values()), 'file')}: {', '.join(shown)}"), soft_wrap=True)


def _below(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) + "/" * path.is_dir()


class DownloadBar:
    """Progress bar with the interface that pooch expects."""

    def __init__(self, name: str, console: Console) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self.progress = Progress(*columns, console=console, transient=True)
        self.task = self.progress.add_task(name, total=None)

    @property
    def total(self) -> int:
        return int(self.progress.tasks[self.task].total or 0)

    @total.setter
    def total(self, total: int) -> None:
        # A new total means a new file or a new attempt.
        self.progress.reset(self.task, total=total or None)
        self.progress.start()

    def update(self, count: int) -> None:
        self.progress.update(self.task, advance=count)

    def reset(self) -> None:
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        self.progress.stop()
