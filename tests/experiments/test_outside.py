"""Benchmarks of other packages: found by their entry point, run and listed, and harmless when broken."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from cuber import CuberError, CuberWarning
from cuber.cli.main import main
from cuber.experiments import BENCHMARKS, Experiment, all_benchmarks, find_benchmark, listing, run
from cuber.experiments.grid import grid
from cuber.experiments.outside import OUTSIDE
from cuber.report.grouping import load_report
from tests.packages import install

MINE = """
from dataclasses import replace
from cuber.experiments import BENCHMARKS
mine = replace(BENCHMARKS["split-digits"], name="mine", help="two digits at a time")
"""
BAD = {
    "missing": ("x = 1", "bad:mine", "cannot be imported from bad:mine: AttributeError"),
    "failing": ("raise KeyError('a\\nb')", "bad:mine", "KeyError: 'a"),
    "no benchmark": ("mine = 3", "bad:mine", "bad:mine, is not a cuber.experiments.Benchmark"),
    "other name": (MINE.replace('"mine"', '"yours"'), "bad:mine", "has the name 'yours': give it that of its entry"),
    "no stream": (MINE.replace("help=", "stream=3, help="), "bad:mine", "has a stream of type int"),
    "no training": (MINE.replace("help=", "training={}, help="), "bad:mine", "has a training of type dict"),
    "no protocol": (MINE.replace("help=", "protocols={}, help="), "bad:mine", "has no protocol"),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for packages, in which this process looks for modules."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bad", raising=False)  # of the test before
    return tmp_path


def offer(site: Path, text: str, value: str, package: str = "their-package") -> None:
    install(site, package, {value.partition(":")[0]: text}, {"mine": value}, OUTSIDE.group)


def test_one_is_found_listed_run_and_reported(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offer(site, MINE, "their_benchmarks:mine")
    assert find_benchmark("mine").help == "two digits at a time"
    assert list(all_benchmarks()) == [*BENCHMARKS, "mine"]
    assert listing.benchmarks()[-1].name == "mine"
    assert [cell.directory.parts[-3] for cell in grid(site, ["mine"], ["gpm"], [0])] == ["mine"]
    result = run(Experiment("mine", tasks=2, epochs=1), site / "run")
    assert result.benchmark == "mine"  # though its stream has another name
    assert load_report([site / "run"]).runs == 1
    with pytest.raises(SystemExit):
        main(["list", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert listed["benchmarks"]["mine"]["help"].startswith("two digits at a time (epochs 10")
    assert {"name": "eps1", "value": "0.5"}.items() <= listed["methods"]["trgp"]["settings"][0].items()


@pytest.mark.parametrize("kind", BAD)
def test_a_broken_one_is_named_in_one_sentence_and_left_out(site: Path, kind: str) -> None:
    text, value, sentence = BAD[kind]
    offer(site, text, value)
    named = f"benchmark 'mine' of the package 'their-package'.*{re.escape(sentence)}"
    with pytest.raises(CuberError, match=named) as error:
        Experiment("mine")
    assert "\n" not in str(error.value)
    with pytest.warns(CuberWarning, match=re.escape(sentence)):
        assert all_benchmarks() == BENCHMARKS


def test_a_name_of_ours_cannot_be_taken_and_one_that_is_nowhere_is_answered(site: Path) -> None:
    install(site, "their-package", {"thief": MINE}, {"split-digits": "thief:mine"}, OUTSIDE.group)
    assert find_benchmark("split-digits") is BENCHMARKS["split-digits"]
    with pytest.warns(CuberWarning, match="offers a benchmark 'split-digits', but cuber has its own"):
        assert all_benchmarks() == BENCHMARKS
    with pytest.raises(CuberError, match="there is no benchmark 'split-digit'; did you mean 'split-digits'"):
        find_benchmark("split-digit")
