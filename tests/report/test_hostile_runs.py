"""Runs from outside: any values in their files are refused with a sentence or shown, and no name can do harm."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuber.cli.main import main
from cuber.core.encoding import UNPRINTABLE
from cuber.experiments.results import FINISHED, load
from cuber.report.comparison import compare
from cuber.report.formats import FORMATS
from cuber.report.grouping import make_report
from cuber.report.page import render
from tests.made_up import MATRIX, result, write

REGIME = {"regime": 3, "ratio": 0.5, "cosine": 0.1, "demoted_at": None}
CONDITIONS = {"ratio": 0.5, "cosine": 0.1, "eps2": 0.2, "step_size": 0.1, "agreement": 0.3}
FULL = result(
    regimes=[{}, {"first": {0: REGIME}}, {"first": {0: REGIME, 1: REGIME}}],
    theory=[{}, {"first": {"old": {0: CONDITIONS}}}],
    pool=[{"first": {"size": 2, "dimension": 5}}] * 3,
    predictions=[0.0, -0.1, -0.2],
    accuracy_bare=MATRIX,
    notes=["only 3 of 5 epochs"],
).to_dict()
HOSTILE = "[red]\x1b[31m\x9b2J\n\u202e\ud800\x00$<b>&|\\end{table}"


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values inside a nested value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inside for place in places(part, (*path, key)))]


def changed(values: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy in which one value is replaced."""
    values = deepcopy(values)
    *outer, last = path
    part = values
    for key in outer:
        part = part[key]
    part[last] = new
    return values


odd = st.sampled_from([None, True, -1, 0, 4, 2.5, 10**400, 1e308, -1e308, "", HOSTILE, [], {}, [1], {"0": 1}, [[None]]])


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(places(FULL)[1:]), value=odd)
def test_one_odd_value_is_refused_or_shown_and_others_are_shown(tmp_path: Path, path: tuple[Any, ...], value: Any):
    write(tmp_path / "odd", result_json=json.dumps(changed(FULL, path, value)))
    write(tmp_path / "sound", result("trgp"))
    runs = load([tmp_path])
    assert runs[1].state == FINISHED
    assert runs[0].state == FINISHED or str(tmp_path / "odd" / "result.json") in runs[0].reason
    comparison = compare(make_report(runs))
    for write_format in FORMATS.values():
        assert "trgp" in write_format(comparison)


def test_seeds_that_were_tested_once_and_after_each_task_are_two_variants(tmp_path: Path) -> None:
    write(tmp_path / "a", result(seed=0))
    write(tmp_path / "b", result(seed=1, accuracy=MATRIX[2:]))
    report = make_report(load([tmp_path]))
    assert [variant.label for group in report.groups for variant in group.variants] == [
        "cuber tests=1",
        "cuber tests=3",
    ]
    assert "cuber tests=3" in render(report)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs with hostile names wherever a file or a directory has one; returns the directory."""
    values = json.loads(json.dumps(FULL).replace("first", "LAYER").replace("bases", "KIND"))
    values |= {"benchmark": HOSTILE, "method": HOSTILE, "notes": [HOSTILE], "machine": {"system": HOSTILE}}
    values |= {"settings": {HOSTILE: HOSTILE}, "tasks": [{"name": f"{n}{HOSTILE}"} for n in range(3)]}
    text = json.dumps(values).replace("LAYER", json.dumps(HOSTILE)[1:-1]).replace("KIND", json.dumps(HOSTILE)[1:-1])
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        os.makedirs(directory := b"runs/%d\xff\x1b[2J\n" % number)
        Path(os.fsdecode(directory), "result.json").write_text(text.replace('"seed": 0', f'"seed": {number}'))
    Path(os.fsdecode(directory), "inside").mkdir()
    Path(os.fsdecode(directory), "inside", "config.toml").write_text("=")
    return "runs"


def called(*arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what it writes to both streams."""
    pipe = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with redirect_stdout(pipe), redirect_stderr(pipe), pytest.raises(SystemExit) as exit:
        main(list(arguments))
    return int(exit.value.code or 0), pipe.buffer.getvalue().decode()  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", ["table", *FORMATS])
def test_names_cannot_command_a_terminal_or_leave_their_line(hostile: str, form: str) -> None:
    code, out = called("compare", hostile, "--format", form)
    assert code == 0
    assert not UNPRINTABLE.search(out.replace("\n", ""))
    assert "[red]" in out
    if form == "latex":
        assert next(line for line in out.splitlines() if "config.toml" in line).startswith("% not counted: runs/")


def test_a_page_can_be_made_of_any_names(hostile: str) -> None:
    code, _ = called("report", hostile, "-o", "page.html", "--figures", "figures")
    page = Path("page.html").read_text(encoding="utf-8")
    assert code == 0
    assert not UNPRINTABLE.search(page.replace("\n", ""))
    assert "<b>&" not in page


def test_all_commands_show_a_name_that_is_not_utf_8_alike(hostile: str, tmp_path: Path) -> None:
    for command in ("compare", "report"):
        code, out = called(command, hostile, "-o", os.fsdecode(b"n\xff.html"))
        assert code == 0
        assert out.startswith(r"n\xff.html: ")


def test_the_error_of_a_command_shows_control_characters() -> None:
    assert called("compare", "nowhere\x1b[31m") == (2, "cuber: directory nowhere\\x1b[31m does not exist\n")
