"""Runs that are kept under results/, and the page that is made from them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from benchmarks import results

from cuber.experiments import Experiment, run
from cuber.experiments.results import FINISHED, load
from cuber.runs.result import Result

KEPT = sorted(path.parent for path in results.RESULTS.rglob("result.json"))
LARGEST = 40_000
"""Bytes of a run that is kept: 20 tasks and 20 layers have many regimes."""


@pytest.mark.parametrize("place", KEPT, ids=lambda place: "/".join(place.parts[-3:]))
def test_every_run_that_is_kept_is_whole_small_and_where_it_belongs(place: Path) -> None:
    (record,) = load([place])
    assert record.state == FINISHED
    assert record.result is not None
    benchmark, variant, seed = place.parts[-3:]
    assert record.result.benchmark == record.about["benchmark"]
    assert re.fullmatch(f"{record.result.benchmark}(-.*)?", benchmark)  # with the options of its stream
    assert re.fullmatch(f"{record.result.method}(-.*)?", variant)
    assert seed == f"seed-{record.result.seed}"
    assert sorted(path.name for path in place.iterdir()) == ["config.toml", "metrics.csv", "result.json"]
    assert sum(path.stat().st_size for path in place.iterdir()) < LARGEST


@pytest.mark.parametrize("path", results.PAGES, ids=lambda path: path.name)
def test_the_pages_say_what_the_files_say(path: Path) -> None:
    page = path.read_text()
    assert len(results.BLOCK.findall(page)) == page.count("<!-- end -->") > 0
    assert results.filled(page) == page, "make results makes the page again"


def test_the_page_shows_figures_that_exist() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", results.PAGE.read_text())
    assert shown
    assert all((results.PAGE.parent / path).exists() for path in shown)


@pytest.mark.parametrize("benchmark", ["split-digits", "split-digits-order=paper", "mine"])
def test_a_run_is_kept_without_losing_what_tables_need(tmp_path: Path, benchmark: str) -> None:
    directory = tmp_path / f"runs/{benchmark}/cuber/seed-0"
    ended = run(Experiment("split-digits", "cuber", tasks=2, epochs=1, threads=1), directory)
    unfinished = directory.with_name("seed-1")
    unfinished.mkdir()
    (unfinished / "config.toml").write_text((directory / "config.toml").read_text())
    (place,) = results.keep([str(tmp_path / "runs")], tmp_path / "kept")  # the second one is not finished
    expected_name = "split-digits" if benchmark == "mine" else benchmark
    assert place == tmp_path / "kept" / expected_name / "cuber/seed-0"
    kept = Result.load(place)
    assert kept.acc == pytest.approx(ended.acc, rel=1e-4)
    assert kept.regimes[1].keys() == ended.regimes[1].keys()
    with (directory / "metrics.csv").open() as whole, (place / "metrics.csv").open() as rounded:
        for expected, row in zip(csv.DictReader(whole), csv.DictReader(rounded), strict=True):
            assert float(row["train_loss"]) == pytest.approx(float(expected["train_loss"]), rel=1e-4)
            assert (row["task"], row["name"], row["epoch"]) == (expected["task"], expected["name"], expected["epoch"])


def test_a_page_with_another_number_is_noticed() -> None:
    page = results.PAGE.read_text()
    number = re.search(r"\d\d\.\d\d(?=±)", results.BLOCK.search(page)[0])  # type: ignore[index]
    assert number is not None
    wrong = page.replace(number[0], "12.34", 1)
    assert results.filled(wrong) != wrong
