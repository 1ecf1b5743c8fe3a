"""Output replaces characters that the encoding of a terminal or pipe lacks."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from cuber.cli.main import main
from tests.made_up import result, shifted, write


@pytest.fixture
def cuber(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run a command in this process with pipes of an encoding, and return stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(encoding: str, *arguments: str) -> tuple[str, str]:
        pipes = [io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2)]
        with redirect_stdout(pipes[0]), redirect_stderr(pipes[1]), pytest.raises(SystemExit) as exit:
            main(list(arguments))
        assert not exit.value.code
        out, err = (pipe.buffer.getvalue().decode(encoding) for pipe in pipes)
        return out, err

    return call


@pytest.fixture
def runs(tmp_path: Path) -> None:
    """Two seeds of one method, and one of another, which has no standard deviation."""
    for seed in range(2):
        write(tmp_path / "runs" / f"gpm-{seed}", result("gpm", seed, accuracy=shifted(seed, 0)))
    write(tmp_path / "runs" / "trgp", result("trgp"))


@pytest.mark.usefixtures("runs")
def test_tables_stay_aligned(cuber) -> None:
    out, _ = cuber("ascii", "compare", "runs", "--table", "acc")
    assert out.startswith("ACC and BWT, mean +- standard deviation over n seeds, on made-up\n")
    assert "|80.50+-0.71 |" in out
    assert len({len(line) for line in out.splitlines() if line[:1] in ("|", "+")}) == 1


@pytest.mark.usefixtures("runs")
def test_documents_are_encodable(cuber) -> None:
    out, _ = cuber("ascii", "compare", "runs", "--table", "acc", "--format", "markdown")
    assert "| gpm | 2 | 80.50+-0.71 | 0.00+-0.00 |" in out


@pytest.mark.usefixtures("runs")
def test_programs_read_the_same(cuber, tmp_path: Path) -> None:
    write(tmp_path / "runs" / "ü\\", config="")
    ours, theirs = (cuber(encoding, "compare", "runs", "--format", "json")[0] for encoding in ("ascii", "utf-8"))
    assert json.loads(ours) == json.loads(theirs)
    assert "mean ± standard deviation" in theirs
    assert r"mean \u00b1 standard deviation" in ours


@pytest.mark.usefixtures("runs")
def test_messages_are_encodable(cuber, tmp_path: Path) -> None:
    write(tmp_path / "runs" / "ü", config="[experiment]")
    _, err = cuber("ascii", "compare", "runs", "--table", "time", "--format", "csv")
    assert err == r"cuber: not counted: runs/\xfc: stopped, 0 tasks learned" + "\n"


def test_degree_signs_are_replaced_only_where_they_are_missing(cuber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuber.report.theory_sweep.sweep_figure", lambda _: Figure((1, 1)))
    rows = {
        encoding: [line.partition("|")[0] for line in out.splitlines() if "holds" in line or "-|" in line]
        for encoding in ("ascii", "latin-1")
        for out in [cuber(encoding, "theory", "--angles", "2", "--steps", "2")[0]]
    }
    assert rows == {"ascii": ["  0deg", "180deg"], "latin-1": ["   0°", " 180°"]}
