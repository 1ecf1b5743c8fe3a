"""The HTML page: its numbers equal those of the results, it is well-formed and needs no other file."""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from cuber.cli.main import main
from cuber.errors import CuberError
from cuber.experiments.results import FAILED, FINISHED, RunRecord
from cuber.report import drawing
from cuber.report.comparison import TABLES, compare
from cuber.report.figures import marks_of, save_all, time_bars
from cuber.report.grouping import make_report
from cuber.report.model import Group, Report, Variant
from cuber.report.page import render
from cuber.training import Result

HOSTILE = "<script>alert('$1 & $2')</script>\"><img src=x onerror=alert(1)>"
VOID = {"meta", "input", "br", "img", "link", "hr"}
SIGNS = {"\N{NO-BREAK SPACE}": " ", "\N{MINUS SIGN}": "-"}


def regime(number, demoted_at=None):
    return {"regime": number, "ratio": 0.75, "cosine": None if number == 1 else -0.25, "demoted_at": demoted_at}


def result(method="cuber", seed=0, tasks=3, rows=None, **changes) -> dict:
    """A made-up result, as it would be read from ``result.json``."""
    count = tasks if rows is None else rows
    accuracy = [
        [90.0 + seed - 3 * j - 1.5 * (i - j) if j <= i or rows == 1 else None for j in range(tasks)]
        for i in range(count)
    ]
    made = Result(
        benchmark="made-up",
        method=method,
        seed=seed,
        tasks=[{"name": f"part {n}"} for n in range(tasks)],
        settings={"eps1": 0.5},
        training={"epochs": 7, "lr": 0.125},
        accuracy=accuracy,
        regimes=[
            {"a.0": {old: regime(3 if old % 2 else 2, 5 if old == 1 else None) for old in range(n)}, "b.1": {}}
            for n in range(tasks)
        ],
        seconds=[1.5 + seed] * count,
        bytes=[{"bases": 2000 * (n + 1), "heads": 0} for n in range(count)],
        pool=[{"a.0": {"size": 8 * (n + 1), "dimension": 64}} for n in range(count)],
        machine={"cuber": "9.9", "threads": 1},
    ).to_dict()
    if rows == 1:
        made |= {"acc": sum(accuracy[0]) / tasks, "bwt": None, "forgetting": None}
    return made | changes


def variant(*results: dict) -> Variant:
    """The results of one method, read as from ``result.json``."""
    read = [Result.from_dict(copy.deepcopy(one)) for one in results]
    return Variant(read[0].method, {}, {one.seed: one for one in read})


def report(*results: dict, unfinished=()) -> Report:
    methods = dict.fromkeys(one["method"] for one in results)
    variants = [variant(*(one for one in results if one["method"] == method)) for method in methods]
    return Report([Group("made-up", variants)], list(unfinished))


def unfinished(directory: str, method: str | None, reason: str) -> RunRecord:
    about = {"method": method, "benchmark": "made-up", "seed": 3} if method else {}
    return RunRecord(Path(directory), FAILED, {"experiment": about}, reason=reason)


class Page(HTMLParser):
    """The text of the page's cells and its links; fails where tags do not balance or ids are there twice."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.cells: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))
        local = [address for address in self.addresses if address.startswith("#")]
        assert {address[1:] for address in local} <= set(self.ids)

    def handle_starttag(self, tag, attributes) -> None:
        self.tags.add(tag)
        values = dict(attributes)
        assert not any(name.startswith("on") for name in values)
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[name] for name in ("href", "src") if name in values]
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        for sign, plain in SIGNS.items():
            data = data.replace(sign, plain)
        self.texts.append(data)
        if self.open and any(tag in self.open for tag in ("td", "th")):
            self.cells[-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def row(self, name: str) -> list[str]:
        """The cells that follow the first one with this text."""
        return self.cells[self.cells.index(name) + 1 :]


@pytest.fixture(scope="module")
def full() -> tuple[Report, str]:
    """Two methods with seeds, one with a single seed, one that learns all at once, two that did not finish."""
    made = report(
        *(result("cuber", seed) for seed in (0, 1, 4)),
        result("gpm", 0, regimes=[{"a.0": {old: regime(1) for old in range(n)}} for n in range(3)], settings={}),
        result("finetune", 1, regimes=[], pool=[{}, {}, {}], bytes=[{}, {}, {}], notes=["only 5 of 7 epochs"]),
        result("multitask", 1, rows=1, regimes=[], pool=[], bytes=[{}]),
        unfinished=[unfinished("runs/x", "trgp", "failed: no more memory")],
    )
    return made, render(made)


def test_the_page_stands_alone(full):
    page = Page(full[1])
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert all(address.startswith("#") for address in page.addresses)
    assert not re.findall(r"https?:|@import|url\((?!#)", full[1])
    assert len(full[1]) < 200_000


def test_the_same_results_make_the_same_bytes(full):
    assert render(copy.deepcopy(full[0])) == full[1]


def test_the_summary_has_the_means_and_deviations_of_the_results(full):
    page = Page(full[1])
    three = ["0, 1, 4", "87.17 ± 2.08", "-2.25 ± 0.00", "2.25 ± 0.00", "9.5 ± 6.2 s", "6.0 kB"]
    assert page.row("cuber")[:6] == three
    assert page.row("finetune")[:6] == ["1", "86.50", "-2.25", "2.25", "7.5 s", "0"]
    assert page.row("multitask")[:6] == ["1", "89.50", "–", "–", "2.5 s", "0"]


def test_accuracy_with_the_task_told_inferred_and_not_used_has_columns_of_its_own():
    def shifted(one: dict, by: float) -> list:
        return [[None if value is None else value + by for value in row] for row in one["accuracy"]]

    three = [result("cuber", seed) for seed in (0, 1, 4)]
    three = [one | {"accuracy_inferred": shifted(one, -1), "accuracy_bare": shifted(one, -20)} for one in three]
    text = render(report(*three, result("gpm", 0)))
    page = Page(text)
    columns = ["seeds", "ACC (%)", "BWT", "forgetting"]
    columns += ["ACC, task inferred (%)", "BWT, task inferred", "ACC, task not told (%)", "BWT, task not told"]
    assert page.row("variant")[:8] == columns
    figures = ["87.17 ± 2.08", "-2.25 ± 0.00", "2.25 ± 0.00", "86.17 ± 2.08", "-2.25 ± 0.00", "67.17 ± 2.08"]
    assert page.row("cuber")[:7] == ["0, 1, 4", *figures]
    assert page.row("gpm")[4:8] == ["–"] * 4
    assert "Task inferred: with the task that is inferred from each sample." in page.text
    assert "task" not in " ".join(Page(render(report(result("gpm", 0)))).row("variant")[:6])


def test_the_matrices_are_the_mean_and_each_seed(full):
    accuracies = [cell for cell in Page(full[1]).cells if re.fullmatch(r"\d\d\.\d", cell)]
    mean = ["91.7", "90.2", "88.7", "88.7", "87.2", "85.7"]
    first = ["90.0", "88.5", "87.0", "87.0", "85.5", "84.0"]
    assert accuracies[:12] == mean + first
    assert 'title="87.17 ±\N{NO-BREAK SPACE}2.08 %"' in full[1]
    changes = Page(full[1]).row("change")
    assert changes[:2] == ["-3.0", "-1.5"]


def test_what_was_learned_at_once_is_one_row(full):
    page = Page(full[1])
    assert page.row("all at once")[:3] == ["91.0", "89.5", "88.0"]
    assert page.text.count("Dotted: all tasks learned at once.") == 2


def test_regimes_and_the_epoch_of_each_fall(full):
    page = Page(full[1])
    cells = [cell for cell in page.cells if cell in ("1", "2", "3", "↓5")]
    assert cells.count("↓5") == 3  # one in each of three seeds
    assert 'class="r4" title="ratio 0.75, cosine −0.25">↓5' in full[1]
    assert "Regime 1 in all layers: gpm." in page.text


def test_pools_memory_settings_and_notes(full):
    page = Page(full[1])
    assert page.row("a.0")[:4] == ["8.0", "16.0", "24.0", "64"]
    memory = page.row("of which")
    assert memory[:10] == ["cuber", "3", "0.006", "1.00", "bases 0.006", "gpm", "1", "0.006", "1.00", "bases 0.006"]
    assert page.row("eps1")[:4] == ["0.5", "–", "0.5", "0.5"]
    assert "The same in all: epochs 7, lr 0.125." in page.text
    assert "finetune: only 5 of 7 epochs" in page.text
    assert "cuber 9.9, threads 1" in page.text


def test_the_page_has_every_table_of_compare_with_its_numbers():
    settings = [{"eps2": 0.0}, {"eps2": 0.25}]
    results = [result("cuber", seed, settings=one) for seed in (0, 1) for one in settings]
    results += [result(method, seed, settings={}) for method in ("gpm", "trgp") for seed in (0, 1)]
    runs = [
        RunRecord(Path(f"r{place}"), FINISHED, {}, Result.from_dict(one | {"benchmark": benchmark}))
        for place, (benchmark, one) in enumerate(itertools.product(("split-cifar100", "other"), results))
    ]
    made = make_report(runs)
    page, comparison = Page(render(made)), compare(made)
    assert {table.kind for table in comparison.tables} == set(TABLES)
    for table in [*comparison.tables, comparison.overview]:
        if table.kind == "acc" and table.benchmark == "other":  # the summary and the overview have these numbers
            continue
        for row in table.texts():
            cells = [cell.replace("±", " ± ") for cell in row]
            assert any(page.cells[place : place + len(cells)] == cells for place in range(len(page.cells))), row
    assert "cuber eps2=0.25" in page.text
    assert "p: two-sided paired t-test" in page.text
    # Streams of one name are not mixed
    twice = Report([made.groups[1], Group("other", made.groups[1].variants[:1])])
    assert [len(own[0].rows) for own in compare(twice).of_groups] == [4, 1]
    assert render(twice)
    with pytest.raises(CuberError, match="there is no variant 'nothing'"):
        render(made, against="nothing")


def test_what_did_not_finish_is_listed_and_not_averaged(full):
    page = Page(full[1])
    assert page.row("runs/x") == ["trgp on made-up, seed 3", "failed: no more memory"]
    assert "6 finished runs, 1 not finished" in page.text


def test_figures_have_the_colors_and_letters_of_the_page(full):
    figures = re.findall(r"<svg viewBox.*?</svg>", full[1])
    assert len(figures) == 5
    for figure in figures:
        assert "font-family" not in figure
        assert set(re.findall(r"#[0-9a-f]{6}\b", figure)) <= {"#77aadd"}  # those of memory bars: on both
        assert 'role="img" aria-label="' in figure


def test_numbers_and_colors_in_the_texts_of_a_figure_stay_as_they_are():
    with drawing.styled():
        figure = Figure((2, 1))
        figure.text(0, 0, 'lr 0.0005 #274dad id="x" <b>')
        drawn = drawing.inline(figure, "f1", 'a "name"')
    assert '>lr 0.0005 #274dad id="x" &lt;b&gt;</text>' in drawn
    assert 'aria-label="a &quot;name&quot;"' in drawn


@pytest.mark.parametrize(
    "results",
    [
        [result(tasks=1)],
        [result()],
        [result(rows=1, regimes=[], pool=[], bytes=[{}])],
        [result(tasks=2), result("gpm", tasks=4)],
        [],
    ],
    ids=["one task", "one run", "all at once alone", "unlike streams", "nothing"],
)
def test_odd_results_make_a_page_too(results):
    page = Page(render(report(*results) if results else Report([], [unfinished("runs/x", None, "stopped")])))
    assert "Continual learning results" in page.text
    assert "None" not in page.text
    assert "nan" not in page.text


def test_predictions_and_what_became_of_old_tasks():
    with_predictions = [result(seed=seed, predictions=[0.0, -0.5 - seed, 0.25]) for seed in (0, 1)]
    cells = Page(render(report(*with_predictions))).cells
    assert "-1.000 ± 0.707" in cells
    without = [*with_predictions, result(seed=2)]  # of an earlier version
    assert "Predicted change" not in Page(render(report(*without))).text


def test_hostile_names_are_only_text(tmp_path):
    tasks = [{"name": "$\\frac$ <b>漢字"}, {"name": HOSTILE}]
    hostile = result(HOSTILE, tasks=2, benchmark=HOSTILE, notes=[HOSTILE], settings={HOSTILE: HOSTILE})
    hostile |= {"tasks": tasks, "machine": {"system": HOSTILE}, "bytes": [{HOSTILE: 5}] * 2}
    hostile["pool"] = [{HOSTILE: {"size": 1, "dimension": 2}}] * 2
    hostile["regimes"] = [{}, {HOSTILE: {"0": regime(2)}}]
    made = Report([Group(HOSTILE, [variant(hostile)], notes=[HOSTILE])], [unfinished(HOSTILE, HOSTILE, HOSTILE)])
    page = Page(render(made))
    assert not page.tags & {"script", "img"}
    assert HOSTILE in page.cells
    assert "task 0: $\\frac$ <b>漢字" in page.text
    written = save_all(made, tmp_path / "figures")
    assert {path.parent for path in written} == {tmp_path / "figures"}
    assert all(re.fullmatch(r"[\w.=-]+", path.name) for path in written)


def test_a_figure_is_the_same_file_each_time(full, tmp_path):
    group, marks = full[0].groups[0], marks_of(full[0])
    with drawing.styled():
        first, again = (drawing.save(time_bars(group, marks), tmp_path / name) for name in ("a", "b"))
    assert [path.suffix for path in first] == [".svg", ".png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_the_command_line_starts_without_what_draws():
    code = "import cuber.cli.main, sys; sys.exit(bool({'matplotlib', 'jinja2', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def put(directory, **files) -> None:
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text if isinstance(text, str) else json.dumps(text))


def test_the_command(tmp_path, capsys):
    """Finished runs by variant, and the others apart; the page and the figures are written."""
    runs = tmp_path / "runs"
    put(runs / "a", result_json=result(tasks=2))
    put(runs / "b", result_json=result(tasks=2, seed=1))
    put(runs / "c", result_json=result(tasks=2, settings={"eps1": 0.9}))
    config = '[experiment]\nbenchmark = "made-up"\nmethod = "gpm"\nseed = 7\n'
    put(runs / "d", config_toml=config, error_json={"message": "no more memory", "traceback": ""})
    put(runs / "e", config_toml=config)
    put(runs / "f", result_json='{"benchmark": "made-up"')
    page, figures = tmp_path / "new" / "page.html", tmp_path / "figures"
    with pytest.raises(SystemExit) as exit:
        main(["report", str(runs), "-o", str(page), "--figures", str(figures)])
    assert not exit.value.code
    assert capsys.readouterr().out == f"{page}: 3 finished runs, 2 not finished, 1 damaged\n{figures}: 10 files\n"
    assert "cuber eps1=0.9" in Page(page.read_text()).cells
    names = {path.name for path in figures.iterdir()}
    assert {"made-up_acc-against-bwt.svg", "made-up_accuracy-evolution.png"} <= names
    assert b"<svg" in (figures / "made-up_memory.svg").read_bytes()


def test_a_page_is_written_whole_or_not_at_all(tmp_path, capsys, monkeypatch):
    put(tmp_path / "run", result_json=result(tasks=2))
    (tmp_path / "page.html").write_text("the one before")
    (tmp_path / "file").touch()
    for figures, fails in ((tmp_path / "file", lambda *_: None), (tmp_path / "figures", full_disk)):
        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(SystemExit) as exit:
            main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html"), "--figures", str(figures)])
        assert exit.value.code == 2
        assert (tmp_path / "page.html").read_text() == "the one before"
    sentences = capsys.readouterr().err.splitlines()
    assert sentences[0] == f"cuber: --figures takes a directory, and '{tmp_path / 'file'}' is a file"
    assert sentences[1].endswith("No space left on device")
    assert sorted(os.listdir(tmp_path)) == ["file", "page.html", "run"]


def full_disk(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("damage", [{"pool": [3]}, {"tasks": [{"name": 3}, {}]}])
def test_a_damaged_result_is_not_drawn(damage, tmp_path, capsys):
    put(tmp_path / "a", result_json=result(tasks=2))
    put(tmp_path / "b", result_json=result(tasks=2, seed=1) | damage)
    with pytest.raises(SystemExit) as exit:
        main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")])
    assert not exit.value.code
    assert "1 finished run, 1 damaged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{}/nowhere"], "nowhere does not exist"),
        (["{}"], "there is no run in"),
        (["{}", "-o", "{}"], "--out takes the name of a file"),
    ],
)
def test_what_the_command_says_to_mistakes(arguments, sentence, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["report", *(argument.format(tmp_path) for argument in arguments)])
    assert exit.value.code == 2
    assert sentence in capsys.readouterr().err
