"""Grids that meet what is there: other runs, failures, damage, other processes; and that are killed themselves."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuber.cli.main import main
from cuber.experiments.campaign import FAILED, FINISHED, REFUSED, run_grid
from cuber.experiments.grid import Cell, grid
from cuber.experiments.processes import Output
from cuber.methods import METHODS
from cuber.runs.checkpoint import Checkpoints
from cuber.runs.config_file import read_config
from cuber.training import Result, RunDirectory, Stopped
from tests.experiments.test_grid import SMALL, InThisProcess
from tests.made_up import result, shifted
from tests.training.test_directory import StopAt


def cells(out: Path, **changes: Any) -> list[Cell]:
    return grid(out, ["split-digits"], ["finetune"], [0], **{**SMALL, "threads": 1, **changes})


def stopped(cell: Cell) -> None:
    """Begin a run, and stop it after its first epoch."""
    from cuber.experiments import run

    with pytest.raises(Stopped):
        run(cell.experiment, RunDirectory(cell.directory, loggers=[StopAt(1)]))


def test_a_refusal_is_told_and_not_written(tmp_path: Path) -> None:
    (cell,) = cells(tmp_path)
    stopped(cell)
    before = sorted(path.name for path in cell.directory.rglob("*"))
    with RunDirectory(cell.directory):
        (refused,) = run_grid([cell], InThisProcess())
    assert (refused.state, refused.message.split(" /")[0]) == (REFUSED, "another process is using")
    (refused,) = run_grid(cells(tmp_path, epochs=2), InThisProcess())
    assert refused.state == REFUSED
    assert "holds another run: training.epochs was 1 and is now 2; choose another --out, or start" in refused.message
    (refused,) = run_grid(cells(tmp_path, tasks=99), InThisProcess())
    assert refused.state == REFUSED
    assert sorted(path.name for path in cell.directory.rglob("*")) == before
    assert [job.state for job in run_grid([cell], InThisProcess())] == [FINISHED]


def test_what_came_out_is_told_and_hardly_any_change_has_no_sign(tmp_path: Path) -> None:
    (cell,) = cells(tmp_path)
    stopped(cell)
    for change, shown in ((-0.001, "0.00"), (0.0, "0.00"), (0.25, "+0.25")):
        result("finetune", accuracy=shifted(bwt=change)).save(cell.directory)
        assert [job.message for job in run_grid([cell], InThisProcess())] == [f"ACC 80.00  BWT {shown}"]


def test_a_refusal_before_there_is_a_directory_leaves_none(tmp_path: Path) -> None:
    (refused,) = run_grid(cells(tmp_path, tasks=99), InThisProcess())
    assert "choose 1 to 5, not 99" in refused.message
    assert list(tmp_path.iterdir()) == []


def test_a_failure_counts_until_retried_or_started_over_and_for_its_own_configuration_only(tmp_path: Path) -> None:
    (failed,) = run_grid(cells(tmp_path, lr=1e30), InThisProcess())
    assert "the loss is" in failed.message
    (again,) = run_grid(cells(tmp_path, lr=1e30), InThisProcess())
    assert again.message.startswith("failed before: task 0")
    (tried,) = run_grid(cells(tmp_path, lr=1e30), InThisProcess(), retry=True)
    assert tried.message.startswith("task 0")
    (other,) = run_grid(cells(tmp_path), InThisProcess())
    assert other.message.startswith("holds another run: training.lr was 1e+30 and is now 0.")
    (fresh,) = run_grid(cells(tmp_path), InThisProcess(), fresh=True)
    assert fresh.state == FINISHED


def test_what_runs_record_besides_their_results_reaches_them(tmp_path: Path) -> None:
    small = {**SMALL, "tasks": 2, "threads": 1}
    (job,) = run_grid(
        grid(tmp_path, ["overlap-digits"], ["cuber"], [0], **small),
        InThisProcess(),
        recording={"log": [], "checkpoint_every": 1, "theory": True},
    )
    assert Result.load(job.cell.directory).theory


def test_fresh_starts_all_over(tmp_path: Path) -> None:
    wanted = grid(tmp_path, ["split-digits"], ["finetune"], [0, 1], **SMALL)
    run_grid(wanted, InThisProcess())
    made = [(cell.directory / "result.json").stat().st_mtime_ns for cell in wanted]
    assert [job.state for job in run_grid(wanted, InThisProcess(), fresh=True)] == [FINISHED] * 2
    assert all((c.directory / "result.json").stat().st_mtime_ns > m for c, m in zip(wanted, made, strict=True))


def test_a_run_that_goes_on_keeps_its_number_of_threads(tmp_path: Path) -> None:
    (cell,) = cells(tmp_path)
    stopped(cell)
    (done,) = run_grid(cells(tmp_path, threads=2), InThisProcess())
    assert (done.state, done.cell.experiment.threads) == (FINISHED, 1)
    assert read_config(cell.directory)["experiment"]["threads"] == 1


@pytest.mark.parametrize(
    ("name", "text", "state"),
    [
        ("config.toml", "experiment = 3", REFUSED),
        ("config.toml", "", REFUSED),
        ("config.toml", "[experiment]\n[training]\n[settings]\n", REFUSED),
        ("result.json", '{"accuracy": []}', REFUSED),
        ("error.json", "[]", FAILED),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_damaged_run_is_not_the_end_of_the_grid(
    tmp_path: Path, name: str, text: str, state: str, finished: bool
) -> None:
    both = grid(tmp_path, ["split-digits"], ["finetune"], [0, 1], threads=1, **SMALL)
    run_grid(both[:1], InThisProcess())
    (both[0].directory / "error.json").write_text('{"message": "no more memory"}')
    if not finished:
        (both[0].directory / "result.json").unlink()
    (both[0].directory / name).write_text(text)
    first, second = run_grid(both, InThisProcess())
    assert first.state == (FINISHED if finished and name == "error.json" else state)
    assert second.state == FINISHED


def test_a_damaged_configuration_is_answered_with_what_helps(tmp_path: Path, capsys: Any) -> None:
    (cell,) = cells(tmp_path)
    stopped(cell)
    (cell.directory / "config.toml").write_text("= [")
    arguments = ("split-digits", "--methods", "finetune", "--seeds", "0", "--out", str(tmp_path))
    assert command(*arguments) == 1
    out = capsys.readouterr().out
    assert "put it right, or start over with --fresh" in out
    assert "--retry" not in out
    (refused,) = run_grid([cell], InThisProcess(), retry=True)
    assert refused.state == REFUSED
    (done,) = run_grid([cell], InThisProcess(), fresh=True)
    assert done.state == FINISHED


@pytest.mark.parametrize("name", ["config.toml", "log.jsonl", "metrics.csv", "result.json", "output.txt"])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(tmp_path: Path, capsys: Any, name: str) -> None:
    """The files of one name cannot be written, nor error.json; then there is space again."""
    (cell,) = cells(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch, name, "error.json")
        (failed,) = run_grid([cell], InThisProcess())
    assert failed.state == FAILED
    assert re.match(rf"cannot write (to )?{cell.directory}.*No space left on device", failed.message)
    assert "Traceback" not in capsys.readouterr().err
    (done,) = run_grid([cell], InThisProcess(), retry=True)
    assert done.state == FINISHED


def fill_disk(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Let files of these names, and temporary ones for them, have no space."""
    opened = builtins.open

    def open_unless_full(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if set(mode) & set("wax") and any(name in str(file) for name in names):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        return opened(file, mode, *args, **options)

    patch.setattr(builtins, "open", open_unless_full)
    patch.setattr(io, "open", open_unless_full)


def test_a_failed_run_whose_error_is_damaged_is_retried(tmp_path: Path) -> None:
    (failed,) = run_grid(cells(tmp_path, lr=1e30), InThisProcess())
    (failed.cell.directory / "error.json").write_text("{")
    (before,) = run_grid([failed.cell], InThisProcess())
    assert re.match(r"failed before: .*error.json is damaged", before.message)
    (tried,) = run_grid([failed.cell], InThisProcess(), retry=True)
    assert tried.message.startswith("task 0")


def command(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as done:
        main(["grid", *arguments])
    return done.value.code


def test_the_command_says_that_one_has_failed_and_compare_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "runs" / "split-digits" / "gpm" / "seed-1"
    foreign.mkdir(parents=True)
    (foreign / "thesis.tex").write_text("not ours")
    lines = ["benchmarks = 'split-digits'", "methods = 'gpm'", "seeds = '0-1'", "tasks = 2", "train_per_task = 20"]
    (tmp_path / "grid.toml").write_text("\n".join([*lines, "lr = 1e30"]))
    assert command(str(tmp_path / "grid.toml"), "--jobs", "2", "--out", str(tmp_path / "runs")) == 1
    out = capsys.readouterr().out
    assert "\n0 of 2 runs finished\n" in out
    assert re.search(r"split-digits/gpm/seed-0: failed: task 0 .*: the loss is", out)
    assert re.search(r"split-digits/gpm/seed-1: refused: .* holds files that are not those of a run", out)
    assert out.endswith("\nthe same command with --retry runs the failed ones again\n")
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "runs")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "seed-0 (gpm on split-digits, seed 0): failed, task 0" in shown
    assert "seed-1" not in shown


def test_the_command_gives_no_advice_that_would_not_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_grid(grid(tmp_path, ["split-digits"], ["finetune"], [0], **SMALL), InThisProcess())
    same = ["split-digits", "--methods", "finetune", "--seeds", "0", "--tasks", "2", "--train-per-task", "20"]
    assert command(*same, "--epochs", "2", "--out", str(tmp_path)) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "0 of 1 runs finished"
    assert second.startswith("split-digits/finetune/seed-0: refused: holds another run: training.epochs was 1 and is")
    assert not command(*same, "--epochs", "1", "--out", str(tmp_path))
    assert capsys.readouterr().out == f"1 of 1 runs finished; cuber compare {tmp_path} shows them\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--methods", "gpm,gpm"], "method 'gpm' is there 2 times: name it once"),
        (["--methods", ""], f"there is no method '' (known: {', '.join(METHODS)})"),
        (["--methods", "gpm,,cuber"], f"there is no method '' (known: {', '.join(METHODS)})"),
        (["--seeds", ""], "seeds are given as 0-4 or 0,2,5, not ''"),
        (["--seeds", "0,,2"], "seeds are given as 0-4 or 0,2,5, not '0,,2'"),
        (["--set", "eps2=0.1,0.1"], "eps2 0.1 is there 2 times: name it once"),
        (["--set", "eps2=0.1", "--set", "eps2=0.2"], "--set has two values for eps2, '0.1' and '0.2': give it one"),
        (["--set", "threshold="], "--set takes name=value, not 'threshold='"),
        (["--set", "eps2=much"], "CUBER: eps2 must be a number of at least -1, not 'much'"),
        (["--threads", "0"], "threads must be a whole number from 1 to 1024, not 0"),
        (["--seeds", "0-99999999999"], "'0-99999999999' names more than 10000 seeds: choose some of them"),
    ],
)
def test_mistakes_are_found_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert command("split-digits", *arguments, "--out", str(tmp_path / "runs")) == 2
    assert capsys.readouterr().err == f"cuber: {sentence}\n"
    assert not (tmp_path / "runs").exists()


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (cell,) = cells(tmp_path / "file")
    (job,) = run_grid([cell], InThisProcess())
    assert job.state == FAILED
    assert re.fullmatch(rf"cannot write to {cell.directory}: Not a directory", job.message)


@pytest.mark.parametrize("ours", [True, False])
def test_what_is_printed_waits_until_the_directory_is_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ours: bool
) -> None:
    with Output(tmp_path / "output.txt") as output:
        print("a warning", file=sys.stderr)
        if ours:
            output.start({}, None)
            print("another", file=sys.stderr)
    assert capsys.readouterr().err == ("" if ours else "a warning\n")
    assert [path.read_text() for path in tmp_path.iterdir()] == (["a warning\nanother\n"] if ours else [])


def test_output_to_a_pipe_without_a_reader_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "output.txt")
    with Output(tmp_path / "output.txt") as output, pytest.raises(OSError, match=r"output\.txt"):
        output.start({}, None)


KILLED = """
import json, os, signal, sys
from pathlib import Path
from cuber.experiments.campaign import run_grid
from cuber.experiments.grid import grid
from cuber.experiments.processes import LocalProcesses

if __name__ == "__main__":
    def kill(jobs):
        if jobs[0].done:
            os.kill(os.getpid(), signal.SIGKILL)

    cells = grid(sys.argv[1], ["split-digits"], ["finetune"], [0], tasks=2, epochs=20_000, train_per_task=20, threads=1)
    run_grid(cells, LocalProcesses(1), watch=kill)
"""


def test_a_grid_that_is_killed_leaves_no_orphan_and_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    # The output ends when the last process does that writes to it: the orphan, which would go on for a minute.
    done = subprocess.run([sys.executable, str(tmp_path / "killed.py"), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    (run,) = (tmp_path / "split-digits" / "finetune").iterdir()
    assert not (run / "result.json").exists()
    assert Checkpoints(run / "checkpoint").any()
    assert json.loads((run / "log.jsonl").read_text().splitlines()[-1])["event"] == "stopped"
