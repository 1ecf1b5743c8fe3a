"""The command ``cuber theory``."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from PIL import Image

from cuber.cli.main import main
from cuber.report.theory_sweep import sweep_figure
from cuber.theory.sweep import sweep


@pytest.fixture
def cuber(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main(["theory", *arguments])
        captured = capsys.readouterr()
        return exit.value.code or 0, captured.out, captured.err

    return call


def test_a_table_that_fits_and_a_figure_in_two_formats(cuber, tmp_path: Path) -> None:
    code, out, err = cuber("--angles", "5", "--output", "new/figure")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if "°" in line]
    assert [row[0] for row in rows] == ["0°", "45°", "90°", "135°", "180°"]
    assert [row[1] for row in rows] == ["1.00", "0.71", "0.00", "0.71", "1.00"]
    assert rows[0].count("holds") == 3
    assert rows[2].count("holds") == rows[4].count("holds") == 0
    assert "…" not in out
    assert max(len(line) for line in out.splitlines() if "°" in line) <= 80
    assert "H is 0.837 (exact)" in out
    assert re.search(r"lower joint loss at \d of 5 angles, \d of them not predicted by a theorem", out)
    assert ElementTree.parse(tmp_path / "new" / "figure.svg").getroot().tag.endswith("svg")
    assert Image.open(tmp_path / "new" / "figure.png").size > (1000, 1000)


@pytest.mark.parametrize(
    ("name", "figure"),
    [("figure.png", "figure"), ("figure.SVG", "figure"), ("step.size=0.5", "step.size=0.5"), ("a.png.svg", "a.png")],
)
def test_a_name_with_an_ending_gets_no_second_one(
    cuber, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, figure: str
) -> None:
    monkeypatch.setattr("cuber.report.theory_sweep.sweep_figure", lambda _: Figure((1, 1)))
    code, out, _ = cuber("--angles", "2", "--steps", "2", "-o", name)
    assert code == 0
    assert out.endswith(f"\n{figure}.svg and {figure}.png: the figure\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{figure}.png", f"{figure}.svg"]


def test_the_constants_of_the_network_are_estimated(cuber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuber.report.theory_sweep.sweep_figure", lambda _: Figure((1, 1)))
    code, out, err = cuber("network", "--angles", "2", "--steps", "3", "--step-size", "0.1")
    assert (code, err) == (0, "")
    assert out.count("(estimated)") == 2


@pytest.mark.parametrize("angles", [2, 3])
def test_any_number_of_angles_is_drawn(angles: int) -> None:
    assert len(sweep_figure(sweep("logistic", angles, steps=2)).axes) == 3 + 2 * angles


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["quadratic"], "there is no kind of task 'quadratic'"),
        (["--angles", "1"], "a sweep takes 2 to 1,000 angles"),
        (["--step-size", "-1"], "the step size must be above 0 and at most 1e+06, not -1"),
        (["--old-steps", "-2"], "a sweep takes 0 to 10,000 steps of the old task"),
        (["--output", "."], "--out takes the name of a figure, and '.' is a directory"),
        (["--seed", "-1"], "seed must be a whole number"),
    ],
)
def test_mistakes_get_a_sentence_and_leave_no_file(cuber, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    code, out, err = cuber(*arguments)
    assert code == 2
    assert err.startswith("cuber: ")
    assert sentence in err
    assert (err.count("\n"), out) == (1, "")
    assert list(tmp_path.iterdir()) == []
