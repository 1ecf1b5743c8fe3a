"""Keep finished runs under ``results/``, and make the tables and figures of docs/results.md and README from them.

    python -m benchmarks.results RUNS...     # copy finished runs to results/, then make the page
    python -m benchmarks.results             # make the page only; the same as `make results`

A run is kept without weights and logs: ``result.json``, ``config.toml`` and ``metrics.csv``, numbers rounded, a few
kilobytes (the epochs of ``result.json`` are the rows of ``metrics.csv``, and not kept twice). The pages have prose,
written by hand, and blocks between ``<!-- cuber compare ... -->`` and ``<!-- end -->``, which are the output of that
command; ``tests/test_results.py`` compares them with the files.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from cuber.cli.main import app
from cuber.errors import CuberError
from cuber.experiments.results import FINISHED, load
from cuber.runs.config_file import read_config

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "results.md"
PAGES = (PAGE, ROOT / "README.md")
FIGURES = ROOT / "docs" / "images" / "results"
BLOCK = re.compile(r"(?P<begin><!-- cuber (?P<command>compare [^>]*?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
DECIDE = ("experiment", "training", "settings", "stream")
"""Tables of a configuration that decide the result."""
DIGITS = 5
"""Significant digits that are kept of every number."""


def keep(runs: Iterable[str], results: Path = RESULTS) -> list[Path]:
    """Copy every finished run below ``runs`` to ``results/BENCHMARK/VARIANT/seed-N``; return what was written.

    Raises:
        CuberError: A place holds a run with another configuration already.
    """
    files: dict[Path, dict[str, str]] = {}
    for record in load(runs):
        if record.state != FINISHED or record.result is None:
            continue
        variant, benchmark = record.directory.parent, record.directory.parent.parent.name
        if not benchmark.startswith(f"{record.result.benchmark}-"):  # as grids name it if the stream has options
            benchmark = record.result.benchmark
        place = results / benchmark / variant.name / f"seed-{record.result.seed}"
        if place.resolve() == record.directory.resolve():
            continue
        kept = read_config(place) if (place / "config.toml").exists() else record.config
        if place in files or any(kept.get(table) != record.config.get(table) for table in DECIDE):
            raise CuberError(f"{place} has another run than {record.directory}: keep one of them")
        values = rounded(json.loads((record.directory / "result.json").read_text()) | {"history": []})
        lines = [f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in values.items()]
        files[place] = {
            "result.json": "{\n" + ",\n".join(lines) + "\n}\n",
            "metrics.csv": rounded_table((record.directory / "metrics.csv").read_text()),
            "config.toml": (record.directory / "config.toml").read_text(),
        }
    for place, texts in files.items():
        place.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (place / name).write_text(text)
    return list(files)


def rounded(value: Any) -> Any:
    """Round every float in nested lists and dictionaries."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def rounded_table(text: str) -> str:
    """Round every float in a table of comma-separated values."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for row in csv.reader(io.StringIO(text)):
        writer.writerow(
            f"{float(cell):.{DIGITS}g}" if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", cell) else cell for cell in row
        )
    return output.getvalue()


def filled(page: str) -> str:
    """Return the page with every block replaced by the output of its command."""
    return BLOCK.sub(lambda match: f"{match['begin']}{tables(match['command'])}{match['end']}", page)


def tables(command: str) -> str:
    """Return what ``cuber compare ...`` prints as Markdown, run in the root of the repository."""
    name, *arguments = command.split()
    paths = [str(ROOT / word) if word.startswith("results") else word for word in arguments]
    ended = CliRunner().invoke(app, [name, *paths, "--format", "markdown"])
    if ended.exit_code:
        raise CuberError(f"cuber {command}: {ended.exception}")
    return "\n" + re.sub(r"^### .*\n+", "", ended.output, flags=re.MULTILINE).strip() + "\n\n"


def draw() -> None:
    """Draw the figures that the page shows."""
    page = FIGURES / "report.html"
    ended = CliRunner().invoke(app, ["report", str(RESULTS), "-o", str(page), "--figures", str(FIGURES)])
    if ended.exit_code:
        raise CuberError(f"cuber report: {ended.exception}")
    shown = PAGE.read_text()
    for file in FIGURES.iterdir():
        if file.name not in shown:
            file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUNS", help="directories of runs to keep")
    runs = [path for path in parser.parse_args().runs if path]
    try:
        for place in keep(runs) if runs else []:
            print(place.relative_to(ROOT))
        draw()
        for page in PAGES:
            page.write_text(filled(page.read_text()))
    except (CuberError, OSError) as error:
        print(f"results: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
