"""Output formats of `cuber compare`: terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from cuber.core.encoding import encodable
from cuber.report.table import Column, Table

if TYPE_CHECKING:
    from cuber.experiments.results import RunRecord
    from cuber.report.comparison import Comparison

LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}"}
)
LONG = 40
"""LaTeX breaks the lines of a column of words with more characters than this."""


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print the tables with their notes, and the runs without a result."""
    for table in comparison.tables:
        console.print(Text(encodable(table.caption, console.encoding), style="bold"))
        console.print(_terminal_table(table, console))
        for note in table.notes:
            console.print(Text(f"note: {note}", style="yellow"))
        console.print()
    if comparison.unfinished:
        console.print(Text("Not counted", style="bold"))
        for run in comparison.unfinished:
            console.print(Text(f"  {_unfinished(run)}", style="yellow"), soft_wrap=True)


def _terminal_table(table: Table, console: Console) -> TerminalTable:
    """Two spaces between columns, or one where words would be broken otherwise."""
    rows = [[encodable(text, console.encoding) for text in row] for row in table.texts()]
    widths = []
    for column, *cells in zip(table.columns, *rows, strict=True):
        texts = [column.heading, *cells]
        widths.append(max(map(len, " ".join(texts).split() if column.words else texts)))
    gap = 2 if sum(widths) + 2 * len(widths) <= console.width else 1
    shown = TerminalTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for column, width in zip(table.columns, widths, strict=True):
        if column.words:
            shown.add_column(column.heading, overflow="fold", min_width=width)
        else:
            shown.add_column(column.heading, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*map(Text, row))
    return shown


def _unfinished(run: RunRecord) -> str:
    """One line: "runs/a (cuber on split-digits, seed 1): incomplete, 2 of 5 tasks learned"."""
    if run.reason.startswith(str(run.directory)):  # messages about damaged files name them
        return run.reason
    name = f" ({run.name})" if run.name else ""
    return f"{run.directory}{name}: {run.state}, {run.reason}"


def markdown(comparison: Comparison) -> str:
    """Markdown tables."""
    parts = []
    for table in comparison.tables:
        lines = [
            _piped([column.heading for column in table.columns]),
            _piped(["---" if column.words else "---:" for column in table.columns]),
            *map(_piped, table.texts()),
        ]
        notes = "".join(f"\n\n*{note}*" for note in table.notes)
        parts.append(f"### {table.caption}\n\n" + "\n".join(lines) + notes)
    if comparison.unfinished:
        parts.append("### Not counted\n\n" + "\n".join(f"- {_unfinished(run)}" for run in comparison.unfinished))
    return "\n\n".join(parts)


def _piped(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def latex(comparison: Comparison) -> str:
    """LaTeX tables for the booktabs package, ACC and BWT as one table; runs without a result are comments.

    Beside the paper's figures, ACC and BWT are also a table of each benchmark.
    """
    own, notes = [], []
    for table in comparison.tables:
        if table.kind != "acc" or any(column.name == "paper_acc" for column in table.columns):
            own.append(table)
        else:
            notes += [f"{table.benchmark}: {note}" for note in table.notes]
    first = comparison.overview
    tables = own if first is None else [replace(first, notes=[*first.notes, *notes]), *own]
    parts = ["% \\usepackage{booktabs}", *(_latex(table, n) for n, table in enumerate(tables))]
    return "\n\n".join(parts + [f"% not counted: {_unfinished(run)}" for run in comparison.unfinished])


def _latex(table: Table, number: int) -> str:
    rows, best = table.texts(), zip(*map(table.best, table.columns), strict=True)
    layout = ""
    for column, *texts in zip(table.columns, *rows, strict=True):
        long = max(map(len, texts)) > LONG
        layout += "r" if not column.words else r"p{0.5\linewidth}" if long else "l"
    label = re.sub(r"[^a-z0-9]+", "-", f"{table.kind}-{table.benchmark}".lower()).strip("-")
    lines = [
        r"\begin{table}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{table.caption.translate(LATEX)}}}",
        rf"\label{{tab:{label}-{number}}}\smallskip",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        *_latex_spans(table),
        " & ".join(column.heading.translate(LATEX) for column in table.columns) + r" \\",
        r"\midrule",
        *(
            " & ".join(map(_latex_cell, table.columns, row, is_best)) + r" \\"
            for row, is_best in zip(rows, best, strict=True)
        ),
        r"\bottomrule",
        r"\end{tabular}",
        *(f"\\par {note.translate(LATEX)}" for note in table.notes),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_cell(column: Column, text: str, is_best: bool) -> str:
    if column.words or text == "-":
        return text.translate(LATEX)
    formula = text.replace("±", r" \pm ")
    return rf"$\mathbf{{{formula}}}$" if is_best else f"${formula}$"


def _latex_spans(table: Table) -> list[str]:
    """The row of headings over columns, and the lines below them."""
    spans = table.spans()
    if not spans:
        return []
    cells = [rf"\multicolumn{{{count}}}{{c}}{{{over.translate(LATEX)}}}" for over, count in spans]
    ends = list(accumulate(count for _, count in spans))
    lines = [
        rf"\cmidrule(lr){{{end - count + 1}-{end}}}" for (over, count), end in zip(spans, ends, strict=True) if over
    ]
    return [" & ".join(cells) + r" \\", " ".join(lines)]


def remarks(comparison: Comparison) -> list[str]:
    """Notes and unfinished runs, for which CSV has no place."""
    notes = [f"{table.caption}: {note}" for table in comparison.tables for note in table.notes]
    return notes + [f"not counted: {_unfinished(run)}" for run in comparison.unfinished]


def as_json(comparison: Comparison, *, ensure_ascii: bool = False) -> str:
    """One object with the tables and the runs without a result."""
    tables = []
    for table in comparison.tables:
        about = {"table": table.kind, "benchmark": table.benchmark, "title": table.title, **table.context}
        tables.append({**about, "rows": table.plain(), "notes": table.notes})
    unfinished = [{"directory": str(r.directory), "state": r.state, "reason": r.reason} for r in comparison.unfinished]
    return json.dumps({"tables": tables, "unfinished": unfinished}, indent=1, ensure_ascii=ensure_ascii)


def as_csv(comparison: Comparison) -> str:
    """One block of rows per kind of table, over all benchmarks, separated by empty lines."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for table in comparison.tables:
        rows = by_kind.setdefault(table.kind, [])
        rows += [{"benchmark": table.benchmark, **table.context, **row} for row in table.plain()]
    blocks = []
    for rows in by_kind.values():
        file = io.StringIO()
        writer = csv.DictWriter(file, dict.fromkeys(name for row in rows for name in row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        blocks.append(file.getvalue())
    return "\n".join(blocks)


FORMATS: Mapping[str, Callable[[Comparison], str]]
FORMATS = {"markdown": markdown, "latex": latex, "csv": as_csv, "json": as_json}
"""Formats that return text; ``show_comparison`` prints the tables for the terminal."""
