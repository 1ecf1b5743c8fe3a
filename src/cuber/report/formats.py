"""A comparison as text: for the terminal, for Markdown and LaTeX documents, for programs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuber.core.encoding import encodable
from cuber.report.comparison.table import Column, Sheet

if TYPE_CHECKING:
    from cuber.experiments.results import Run
    from cuber.report.comparison import Comparison

LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


# For the terminal


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print every table, its notes below it, and in the end what is not in any."""
    for sheet in comparison.sheets:
        console.print(Text(encodable(sheet.caption, console.encoding), style="bold"))
        console.print(_table(sheet, console))
        for note in sheet.notes:
            console.print(Text(f"note: {note}", style="yellow"))
        console.print()
    if comparison.unfinished:
        console.print(Text("Not counted", style="bold"))
        for run in comparison.unfinished:
            console.print(Text(f"  {_unfinished(run)}", style="yellow"), soft_wrap=True)


def _table(sheet: Sheet, console: Console) -> Table:
    """Two blanks between columns, or one where words would not stay in one piece otherwise."""
    rows = [[encodable(text, console.encoding) for text in row] for row in sheet.texts()]
    widths = [_width(column, cells) for column, *cells in zip(sheet.columns, *rows, strict=True)]
    gap = 2 if sum(widths) + 2 * len(widths) <= console.width else 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for column, width in zip(sheet.columns, widths, strict=True):
        if column.words:
            table.add_column(column.heading, overflow="fold", min_width=width)
        else:
            table.add_column(column.heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _width(column: Column, cells: list[str]) -> int:
    """The least width that breaks no number and no word."""
    texts = [column.heading, *cells]
    return max(map(len, [word for text in texts for word in text.split()] if column.words else texts))


def _unfinished(run: Run) -> str:
    """In one line: "runs/a (cuber on split-digits, seed 1): incomplete, 2 of 5 tasks learnt"."""
    reason = " ".join(run.reason.split())
    if reason.startswith(str(run.directory)):  # the sentence about a damaged file names it
        return reason
    name = f" ({run.name})" if run.name else ""
    return f"{run.directory}{name}: {run.state}, {reason}"


# For documents


def markdown(comparison: Comparison) -> str:
    """Tables with pipes."""
    parts = []
    for sheet in comparison.sheets:
        lines = [
            _piped([column.heading for column in sheet.columns]),
            _piped(["---" if column.words else "---:" for column in sheet.columns]),
            *map(_piped, sheet.texts()),
        ]
        notes = "".join(f"\n\n*{note}*" for note in sheet.notes)
        parts.append(f"### {sheet.caption}\n\n" + "\n".join(lines) + notes)
    if comparison.unfinished:
        parts.append("### Not counted\n\n" + "\n".join(f"- {_unfinished(run)}" for run in comparison.unfinished))
    return "\n\n".join(parts)


def _piped(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def latex(comparison: Comparison) -> str:
    """Tables for a document that uses booktabs; what is not counted is a comment."""
    parts = ["% \\usepackage{booktabs}", *(_latex(sheet, n) for n, sheet in enumerate(comparison.sheets))]
    return "\n\n".join(parts + [f"% not counted: {_unfinished(run)}" for run in comparison.unfinished])


def _latex(sheet: Sheet, number: int) -> str:
    layout = "".join("p{0.5\\linewidth}" if column.long else "l" if column.words else "r" for column in sheet.columns)
    head = " & ".join(_escaped(column.heading) for column in sheet.columns)
    rows = [
        " & ".join(_latex_cell(column, row.get(column.name)) for column in sheet.columns) + r" \\" for row in sheet.rows
    ]
    label = re.sub(r"[^a-z0-9]+", "-", f"{sheet.kind}-{sheet.benchmark}".lower()).strip("-")
    notes = [f"\\par {_escaped(note)}" for note in sheet.notes]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{_escaped(sheet.caption)}}}",
            rf"\label{{tab:{label}-{number}}}\smallskip",
            rf"\begin{{tabular}}{{{layout}}}",
            r"\toprule",
            head + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table}",
        ]
    )


def _latex_cell(column: Column, cell: Any) -> str:
    text = column.text(cell)
    return _escaped(text) if column.words or cell is None else "$" + text.replace("±", r" \pm ") + "$"


def _escaped(text: str) -> str:
    """Text that LaTeX prints as it is.

    >>> print(_escaped("lr=50% & norm_statistics"))
    lr=50\\% \\& norm\\_statistics
    """
    return "".join(LATEX.get(character, character) for character in text)


# For programs


def remarks(comparison: Comparison) -> list[str]:
    """What people must know of tables that are nothing but numbers."""
    notes = [f"{sheet.caption}: {note}" for sheet in comparison.sheets for note in sheet.notes]
    return notes + [f"not counted: {_unfinished(run)}" for run in comparison.unfinished]


def as_json(comparison: Comparison, *, ensure_ascii: bool = False) -> str:
    """One object: the tables, and what is not in them."""
    tables = [
        {
            "table": sheet.kind,
            "benchmark": sheet.benchmark,
            "title": sheet.title,
            **sheet.context,
            "rows": sheet.plain(),
            "notes": sheet.notes,
        }
        for sheet in comparison.sheets
    ]
    unfinished = [
        {"directory": str(run.directory), "state": run.state, "reason": run.reason} for run in comparison.unfinished
    ]
    return json.dumps({"tables": tables, "unfinished": unfinished}, indent=1, ensure_ascii=ensure_ascii)


def as_csv(comparison: Comparison) -> str:
    """A block of rows for each kind of table, over all benchmarks, with an empty line between blocks."""
    kinds = dict.fromkeys(sheet.kind for sheet in comparison.sheets)
    return "\n".join(_csv([sheet for sheet in comparison.sheets if sheet.kind == kind]) for kind in kinds)


def _csv(sheets: list[Sheet]) -> str:
    rows = [{"benchmark": sheet.benchmark, **sheet.context, **row} for sheet in sheets for row in sheet.plain()]
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": as_csv,
    "json": as_json,
}
"""Besides the tables of the terminal, which need to know how wide it is."""
