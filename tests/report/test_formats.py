"""Output formats of `cuber compare`."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from cuber.experiments.results import FAILED, FINISHED, RunRecord
from cuber.report.comparison import Comparison, compare
from cuber.report.formats import as_csv, as_json, latex, markdown, remarks, show_comparison
from cuber.report.grouping import make_report
from tests.made_up import result, shifted

CIFAR = "split-cifar100"
METHODS = ("multitask", "owm", "ewc", "hat", "agem", "er", "gpm", "trgp")
BROKEN = RunRecord(
    Path("runs/x_1"),
    FAILED,
    {"experiment": {"method": "gpm", "benchmark": "b", "seed": 4}},
    reason="100 % of\nthe disk",
)


def whole_table() -> Comparison:
    """Every method of the paper's table and a sweep, five seeds each, figures with as many digits as there can be."""
    regimes = [{}, {"a": {0: {"regime": 3, "demoted_at": None}}}, {}]
    orders = [[90.0, 78.0, 72.0], [90.0, 80.0, 76.0]]
    results = [result(m, n, benchmark=CIFAR, accuracy=shifted(n, -30 - n)) for m in METHODS for n in range(5)]
    results += [
        result("cuber", n, benchmark=CIFAR, settings={"eps2": eps2}, regimes=regimes, reshuffled=orders)
        for n in range(5)
        for eps2 in (0.0, 0.2, 0.5)
    ]
    return comparison(*results)


def comparison(*results) -> Comparison:
    runs = [RunRecord(Path(f"r{n}"), FINISHED, {}, one) for n, one in enumerate(results)] + [BROKEN]
    return compare(make_report(runs))


def awkward() -> Comparison:
    """Names with everything that formats have a meaning for."""
    settings = [{"norm_statistics": "batch", "x": value} for value in (r"50%|\{a}_$&#~^<", "*b*")]
    return comparison(*(result("my_method", n, benchmark="r&d_100%", settings=settings[n]) for n in range(2)))


def printed(shown: Comparison, width: int) -> str:
    file = io.StringIO()
    show_comparison(shown, Console(file=file, width=width, color_system=None))
    return file.getvalue()


# The terminal


@pytest.mark.parametrize("width", [80, 120])
def test_the_papers_whole_table_fits(width):
    text = printed(whole_table(), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "trgp 5 82.00±1.58 74.46±0.32 +7.54 -32.00±1.58 -0.9±0.01 -31.10 -" in lines
    # Where a variant's name takes two lines, it is broken between words.
    name = "cuber eps2=0.2 " if width > 80 else "cuber "
    assert name + "5 80.00±0.00 75.73 +4.27 0.00±0.00 0.03 -0.03 1.41" in lines
    assert width > 80 or "eps2=0.2" in lines


def test_unfinished_runs_are_below_the_tables():
    text = " ".join(printed(comparison(result()), 200).split())
    assert text.endswith("Not counted runs/x_1 (gpm on b, seed 4): failed, 100 % of the disk")


def test_what_is_in_brackets_is_no_markup():
    text = printed(comparison(result(settings={"samples": [1, 2]}), result(settings={"samples": [3]})), 100)
    assert "cuber samples=[1,2]" in text


# Documents


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize("make", [whole_table, awkward])
def test_markdown_tables_have_as_many_cells_in_every_row(make):
    text = markdown(make())
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        rows = [cells(line) for line in block.strip().splitlines()]
        assert len({len(row) for row in rows}) == 1
        assert all(re.fullmatch("---:?", cell) for cell in rows[1])
    assert "- runs/x_1 (gpm on b, seed 4): failed, 100 % of the disk" in text


def test_markdown_to_the_letter():
    only = comparison(result(), result("gpm"))
    only.tables[1:] = []
    only = Comparison(only.tables, [])
    assert markdown(only) == (
        "### ACC and BWT, mean ± standard deviation over n seeds, on made-up\n\n"
        "| variant | n | ACC % | BWT % |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| gpm | 1 | 80.00 | 0.00 |\n"
        "| cuber | 1 | 80.00 | 0.00 |"
    )


def cells_of(row: str) -> int:
    """Number of columns that a row of LaTeX fills."""
    spanned = sum(int(count) - 1 for count in re.findall(r"\\multicolumn{(\d+)}", row))
    return len(re.findall(r"(?<!\\)&", row)) + 1 + spanned


def test_latex_has_the_papers_first_table_as_one_table_with_the_best_in_bold():
    results = [result("multitask", benchmark=CIFAR, accuracy=[[99.0, 99.0, 99.0]])]
    for method, acc, bwt in (("gpm", 0, -1), ("trgp", 2, 0.001), ("cuber", 2.001, 0)):
        results.append(result(method, benchmark=CIFAR, accuracy=shifted(acc, bwt)))
    results += [result("cuber", benchmark="five-datasets"), result("cuber", 1, benchmark="five-datasets")]
    text = latex(comparison(*results))
    first = text[text.index(r"\begin{table}") : text.index(r"\end{table}")]
    assert r"\multicolumn{1}{c}{} & \multicolumn{2}{c}{split-cifar100} & \multicolumn{2}{c}{five-datasets} \\" in first
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in first
    assert r"variant & ACC \% & BWT \% & ACC \% & BWT \% \\" in first
    assert r"multitask & $99.00$ & - & - & - \\" in first  # an upper bound, not the best
    assert r"gpm & $80.00$ & $-1.00$ & - & - \\" in first
    # Equal as printed: both are the best. Where only one method ran, nothing is.
    assert r"trgp & $\mathbf{82.00}$ & $\mathbf{0.00}$ & - & - \\" in first
    assert r"cuber & $\mathbf{82.00}$ & $\mathbf{0.00}$ & $80.00 \pm 0.00$ & $0.00 \pm 0.00$ \\" in first


def test_latex_says_a_note_of_a_benchmark_also_where_its_table_is_not_shown():
    text = latex(comparison(result(notes=["only 3 of 20 epochs"])))
    assert text.count(r"\par made-up: only 3 of 20 epochs") == 1


@pytest.mark.parametrize("make", [whole_table, awkward])
def test_latex_is_sound(make):
    """Braces and environments are balanced, rows have as many cells as the layout, nothing special is left bare."""
    text = "\n".join(line for line in latex(make()).splitlines() if not line.startswith("%"))
    bare = re.sub(r"\\[\\&%$#_{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not set(re.sub(r"\$[^$]*\$", "", bare)) & set("#_%^~±<>")
    tables = re.findall(r"\\begin{table}(.*?)\\end{table}", text, re.DOTALL)
    own = [one for one in make().tables if one.kind != "acc" or make is whole_table]
    assert len(tables) == text.count(r"\begin{table}") == 1 + len(own)
    for table in tables:
        layout = re.search(r"\\begin{tabular}{(.*)}", table).group(1).replace(r"p{0.5\linewidth}", "p")
        body = table[table.index(r"\toprule") : table.index(r"\end{tabular}")]
        rules = ("\\toprule", "\\midrule", "\\bottomrule", "\\cmidrule")
        rows = [row for row in body.splitlines() if not row.startswith(rules)]
        assert all(row.endswith(r" \\") for row in rows)
        assert {cells_of(row) for row in rows} == {len(layout)}
    labels = re.findall(r"\\label{(.*?)}", text)
    assert len(set(labels)) == len(tables)


def test_latex_numbers_are_mathematics_and_words_are_not():
    text = latex(whole_table())
    assert r"trgp & $5$ & $82.00 \pm 1.58$ & $74.46 \pm 0.32$ & $+7.54$ & $-32.00 \pm 1.58$" in text
    assert r"multitask & $5$ & $82.00 \pm 1.58$ & $79.58 \pm 0.54$ & $+2.42$ & " in text
    assert r"\caption{ACC and BWT, mean $\pm$ standard deviation over n seeds, on split-cifar100}" in text
    assert text.endswith("% not counted: runs/x_1 (gpm on b, seed 4): failed, 100 % of the disk")
    assert r"my\_method x=50\%|\textbackslash{}\{a\}\_\$\&\#\textasciitilde{}\textasciicircum{}\textless{}" in latex(
        awkward()
    )


# Programs


def test_csv_has_a_block_for_each_kind_of_table():
    other = [result("gpm", benchmark="other"), result("cuber", 1, benchmark="other", bytes=[{"gradients": 5000}])]
    blocks = as_csv(comparison(result("gpm", benchmark=CIFAR, accuracy=shifted(1, 2)), *other)).split("\n\n")
    first, time, memory = [list(csv.DictReader(io.StringIO(block))) for block in blocks]
    assert [(row["benchmark"], row["variant"]) for row in first] == [
        (CIFAR, "gpm"),
        ("other", "gpm"),
        ("other", "cuber"),
    ]
    assert first[0] | {"acc": "81.0", "bwt": "2.0", "paper_acc": "72.48", "paper_acc_deviation": "0.4"} == first[0]
    assert float(first[0]["acc_difference"]) == pytest.approx(81 - 72.48)
    assert first[0]["acc_deviation"] == ""
    assert first[1]["paper_acc"] == ""
    assert [row["seconds"] for row in time] == ["10.0"] * 3
    assert [row["megabytes_of_gradients"] for row in memory] == ["", "0.0", "0.005"]


def test_what_csv_has_no_place_for():
    notes = remarks(comparison(result("gpm"), result("gpm")))
    assert len(notes) == 2
    assert notes[0].startswith(
        "ACC and BWT, mean ± standard deviation over n seeds, on made-up: gpm: r1 repeats seed 0"
    )
    assert notes[1] == "not counted: runs/x_1 (gpm on b, seed 4): failed, 100 % of the disk"


def test_json_has_everything():
    values = json.loads(as_json(whole_table()))
    assert [table["table"] for table in values["tables"]] == [
        *("acc", "differences", "selected", "selected", "selected", "forward", "sweep", "time", "memory")
    ]
    assert values["tables"][1]["against"] == "trgp"
    assert values["tables"][6]["rows"][1]["eps2"] == 0.2
    assert values["tables"][0]["rows"][0]["paper_acc_deviation"] == 0.54
    assert values["unfinished"] == [{"directory": "runs/x_1", "state": "failed", "reason": "100 % of the disk"}]


def test_tables_do_without_torch():
    script = "import sys, cuber.report.formats, cuber.report.comparison; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
