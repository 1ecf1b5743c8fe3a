"""Grids: every combination once, failures kept apart, finished ones left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Executor, Future
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from cuber.cli.main import main
from cuber.errors import CuberError
from cuber.experiments.campaign import FAILED, FINISHED, REFUSED, STOPPED, part_done, run_grid
from cuber.experiments.grid import Cell, grid, numbers, read_grid
from cuber.experiments.processes import LocalProcesses, work
from cuber.runs.result import Result

RIGHT = "benchmarks = 'split-digits'\nmethods = 'gpm'\nseeds = 0\n"
SMALL: dict[str, Any] = {"tasks": 2, "epochs": 1, "train_per_task": 20}


class InThisProcess(Executor):
    """Another executor than ours: calls at once, here."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function(*args, **kwargs))
        except CuberError as error:
            future.set_exception(error)
        return future


def test_every_combination_once_and_settings_where_they_belong(tmp_path: Path) -> None:
    cells = grid(tmp_path, ["split-digits"], ["cuber", "trgp", "gpm"], [0, 1], {"eps2": [0.0, 0.1], "samples": [50]})
    names = [str(cell.directory.relative_to(tmp_path)) for cell in cells]
    assert names == [
        f"split-digits/{name}/seed-{seed}"
        for name in ("cuber-eps2=0.0", "cuber-eps2=0.1", "trgp", "gpm")
        for seed in (0, 1)
    ]
    assert cells[2].experiment.settings == {"eps2": 0.1, "samples": 50}
    assert cells[-1].experiment.settings == {"samples": 50}


def test_grids_of_two_protocols_fit_into_one_directory(tmp_path: Path) -> None:
    def names(protocol: str | None) -> list[str]:
        cells = grid(tmp_path, ["split-digits"], ["cuber"], [0], {"eps2": [0.0, 0.1]}, protocol=protocol)
        return [cell.directory.parent.name for cell in cells]

    assert names(None) == names("usual") == ["cuber-eps2=0.0", "cuber-eps2=0.1"]
    assert names("paper") == ["cuber-protocol=paper-eps2=0.0", "cuber-protocol=paper-eps2=0.1"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"settings": {"eps3": [1]}}, "none of the methods gpm has a setting 'eps3'"),
        ({"methods": ["gmp"]}, "there is no method 'gmp'; did you mean 'gpm'"),
        ({"benchmarks": ["digits"]}, "there is no benchmark 'digits'"),
        ({"methods": ["gpm", "gpm"]}, "method 'gpm' is there 2 times: name it once"),
        ({"seeds": [3, 0, 3]}, "seed 3 is there 2 times"),
        ({"settings": {"threshold": [0.9, 0.90]}}, "threshold 0.9 is there 2 times"),
        ({"settings": {"threshold": [0.9, 7]}}, "GPM: threshold must be a number from 0 to 1, not 7"),
        ({"settings": {"threshold": []}}, "one value of each setting"),
        ({"seeds": []}, "at least one benchmark, one method, one seed"),
    ],
)
def test_mistakes(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    right = {"benchmarks": ["split-digits"], "methods": ["gpm"], "seeds": [0], "settings": {}}
    with pytest.raises(CuberError, match=sentence):
        grid(tmp_path, **{**right, **change})


@pytest.mark.parametrize("text", ["", "a", "1-", "-3", "4-0", "1,,2", "0.5"])
def test_what_is_no_list_of_seeds(text: str) -> None:
    with pytest.raises(CuberError, match=r"seeds are given as|names no seed"):
        numbers(text)


@pytest.mark.parametrize("text", ["0-99999999999", "0-" + "9" * 5000])
def test_more_seeds_than_anybody_has_time_for(text: str) -> None:
    with pytest.raises(CuberError, match=r"names more than 10000 seeds: choose some of them") as error:
        numbers(text)
    assert len(str(error.value)) < 200


def test_a_file_says_the_same(tmp_path: Path) -> None:
    lines = ['benchmarks = "split-digits"', 'methods = ["cuber", "gpm"]', 'seeds = "0-1"', "tasks = 2"]
    (tmp_path / "grid.toml").write_text("\n".join([*lines, "[settings]", "eps2 = [0.0, 0.1]"]))
    cells = grid("runs", ["split-digits"], ["cuber", "gpm"], [0, 1], {"eps2": [0.0, 0.1]}, tasks=2)
    assert read_grid(tmp_path / "grid.toml", "runs") == cells


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("methods = [", "is not TOML"),
        ('benchmarks = "split-digits"\nmethods = "gpm"', "lacks 'seeds'"),
        ('benchmarks = "split-digits"\nmethods = "gpm"\nseeds = 0\nepoch = 3', "'epoch' is not a key of a grid file"),
        (f"{RIGHT}settings = 3", "grid.toml: settings must be a table of names and values, not 3"),
        (f"{RIGHT}options = 3", "grid.toml: options must be a table of names and values, not 3"),
        (f"{RIGHT}protocol = ['paper']", r"grid.toml: protocol must be text, not \['paper'\]"),
        (f"{RIGHT}tasks = '2'", "grid.toml: tasks must be a whole number, not '2'"),
        (f"{RIGHT}data_dir = 3", "grid.toml: data_dir must be text, not 3"),
        (f"{RIGHT}precision = 'half'", "grid.toml: there is no precision 'half'"),
        (f"{RIGHT}compile = 'yes'", "grid.toml: compile must be true or false, not 'yes'"),
        (f"{RIGHT}settings.threshold = [[[0.9]]]", r"threshold must be a number from 0 to 1, not \[0.9\]"),
        ("benchmarks = 3\nmethods = 'gpm'\nseeds = 0", "benchmark must be text, not 3"),
        ("benchmarks = 'split-digits'\nmethods = [['gpm']]\nseeds = 0", r"method must be text, not \['gpm'\]"),
        ("benchmarks = 'split-digits'\nmethods = 'gpm'\nseeds = [[0]]", r"seed must be a whole number .* not \[0\]"),
        ("benchmarks = 'split-digits'\nmethods = 'gpm'\nseeds = '0-'", "grid.toml: seeds are given as"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(CuberError, match=sentence):
        read_grid(tmp_path / "grid.toml", tmp_path)


def test_one_of_six_is_refused_and_the_others_finish(tmp_path: Path) -> None:
    cells = grid(tmp_path, ["split-digits"], ["finetune", "gpm"], [0, 1, 2], **SMALL)
    cells[4].directory.mkdir(parents=True)
    (cells[4].directory / "thesis.tex").write_text("not ours")
    standings = run_grid(cells, InThisProcess())
    assert [standing.state for standing in standings] == [FINISHED] * 4 + [REFUSED, FINISHED]
    assert "holds files that are not those of a run" in standings[4].message
    assert os.listdir(cells[4].directory) == ["thesis.tex"]

    made = [(cell.directory / "result.json").stat().st_mtime_ns for cell in cells if cell is not cells[4]]
    (cells[4].directory / "thesis.tex").unlink()
    assert [standing.state for standing in run_grid(cells, InThisProcess())] == [FINISHED] * 6
    assert [(c.directory / "result.json").stat().st_mtime_ns for c in cells if c is not cells[4]] == made


def killed_by_the_system(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_processes_of_their_own_take_no_other_with_them(tmp_path: Path) -> None:
    (cell,) = grid(tmp_path, ["split-digits"], ["gpm"], [0], threads=1, **SMALL)
    executor = LocalProcesses(2)
    futures = [executor.submit(killed_by_the_system), executor.submit(work, cell.experiment, cell.directory)]
    assert str(futures[0].exception()) == "its process was killed (SIGKILL)"
    assert futures[1].exception() is None
    assert Result.load(cell.directory).accuracy
    assert part_done(cell) == 1.0


@pytest.mark.parametrize("error", [OSError(11, "Resource temporarily unavailable"), EOFError(), MemoryError()])
def test_a_process_that_cannot_be_started_is_a_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def cannot_start(process: BaseProcess) -> None:
        raise error

    monkeypatch.setattr(BaseProcess, "start", cannot_start)
    cells = grid(tmp_path, ["split-digits"], ["gpm"], [0, 1], **SMALL)
    jobs = run_grid(cells, LocalProcesses(2))
    reason = str(error) or type(error).__name__
    assert [(job.state, job.message) for job in jobs] == [(FAILED, f"its process could not be started ({reason})")] * 2


def test_no_more_threads_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    executor = LocalProcesses(2)
    monkeypatch.setattr(threading.Thread, "start", cannot_start)
    with pytest.raises(CuberError, match=r"cannot start 2 runs at a time \(can't start new thread\): lower --jobs"):
        executor.submit(killed_by_the_system)


IMPORTING = """
import signal
from multiprocessing import forkserver
from cuber.experiments import processes

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts processes in the background without
    processes.PRELOADED = []
    executor = processes.LocalProcesses(1)
    executor.submit(print, "a run")
    server = forkserver._forkserver._forkserver_pid
    ignored = next(line.split()[1] for line in open(f"/proc/{server}/status") if line.startswith("SigIgn"))
    assert int(ignored, 16) >> (signal.SIGINT - 1) & 1, "Ctrl-C would print a traceback of the server"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    executor.shutdown()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="signals of other processes are read from /proc")
def test_the_server_that_forks_processes_ignores_interrupts_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "importing.py").write_text(IMPORTING)
    done = subprocess.run([sys.executable, str(tmp_path / "importing.py")], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a run\n", "")


def test_stopped_before_they_began(tmp_path: Path) -> None:
    executor = LocalProcesses(1)
    executor.stop()
    cells = [Cell(cell.experiment, cell.directory) for cell in grid(tmp_path, ["split-digits"], ["gpm"], [0], **SMALL)]
    assert [standing.state for standing in run_grid(cells, executor)] == [STOPPED]
    assert not cells[0].directory.exists()


def test_with_a_file_nothing_else_is_listened_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["grid", str(tmp_path / "grid.toml"), "--seeds", "3", "--epochs", "2"])
    assert done.value.code == 2
    assert capsys.readouterr().err == "cuber: with a grid file, set seeds, epochs in the file\n"


def test_how_far_a_run_has_come(tmp_path: Path) -> None:
    (cell,) = grid(tmp_path, ["split-digits"], ["gpm"], [0], tasks=2, epochs=4)
    assert part_done(cell) == 0.0
    cell.directory.mkdir(parents=True)
    (cell.directory / "config.toml").write_text("[stream]\ntasks = [{}, {}]\n")
    (cell.directory / "log.jsonl").write_text('{"event": "epoch", "task": 1, "epoch": 2}\n{"event": "resumed"}\n{"eve')
    assert part_done(cell) == 0.75
    found = replace(cell, experiment=replace(cell.experiment, boundaries="detect"))  # whose tasks have other epochs
    assert part_done(found) == 0.5
    (cell.directory / "log.jsonl").write_text('{"event": "epoch", "task": 7, "epoch": 900}\n')
    assert part_done(found) == 1.0
    assert run_grid([], InThisProcess()) == []


def test_grid_files_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    os.mkfifo(tmp_path / "pipe.toml")
    for name, sentence in (("deep", "is not TOML: "), ("pipe", "cannot read .*: it is not a file")):
        with pytest.raises(CuberError, match=sentence):
            read_grid(tmp_path / f"{name}.toml", tmp_path)
