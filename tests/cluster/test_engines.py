"""Engines that are not there, and Slurm by a stand-in for its command sbatch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuber.cli.main import main
from cuber.cli.run import for_workers
from cuber.experiments.grid import grid
from cuber.runs.result import FILE_NAME

SAME = ["split-digits", "--methods", "gpm", "--seeds", "0", "--tasks", "2", "--train-per-task", "20"]


def command(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as done:
        main(["grid", *SAME, "--epochs", "1", *arguments])
    return done.value.code


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--on", "kubernetes"], "--on takes dask://HOST:PORT, ray://HOST:PORT, ray or slurm, not 'kubernetes'"),
        (["--on", "dask"], "--on takes dask://HOST:PORT, ray://HOST:PORT, ray or slurm, not 'dask'"),
        (["--on", "dask://"], "--on dask:// is not an address such as dask://HOST:PORT (it names no host or no port)"),
        (["--on", "slurm"], "--on slurm needs --jobs: the number of array tasks, which divide the runs"),
        (["--on", "slurm", "--jobs", "2"], "--on slurm needs Slurm's command sbatch, which is not on the PATH"),
        (["--on", "slurm", "--jobs", "2", "--threads", "-3"], "threads must be a whole number from 1 to 1024, not -3"),
        (
            ["--on", "slurm", "--jobs", "2", "--device", "x"],
            "device must be cpu, cuda, cuda:1 (or another number), mps",
        ),
        (["--on", "ray://x"], "--on ray://x is not an address such as ray://HOST:PORT (it names no host or no port)"),
        (["--fresh", "--join"], "--fresh needs the runs for itself, without --on and --join: choose another --out"),
    ],
)
def test_mistakes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command(*arguments, "--out", str(tmp_path)) == 2
    assert capsys.readouterr().err.startswith(f"cuber: {sentence}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_nothing_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, but without a listener
        address = f"127.0.0.1:{free.getsockname()[1]}"
        assert command("--on", f"{engine}://{address}", "--out", str(tmp_path)) == 2
    said = f"cuber: --on {engine}://{address}: nothing answers at {address} (Connection refused)\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("engine", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"{engine}://127.0.0.1:{server.getsockname()[1]}"
        assert command("--on", where, "--out", str(tmp_path)) == 2
    assert capsys.readouterr().err.startswith(f"cuber: --on {engine} needs pip install 'cuber-learn[{engine}]' (")


def test_slurm_gives_each_task_as_many_cores_as_a_grid_file_has_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, sbatch = tmp_path / "grid.toml", tmp_path / "sbatch"
    file.write_text("benchmarks = ['split-digits']\nmethods = ['gpm']\nseeds = [0]\nthreads = 4\n")
    sbatch.write_text('#!/bin/sh\nfor script; do :; done\ncp "$script" "$0.script"\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(SystemExit) as done:
        main(["grid", str(file), "--on", "slurm", "--jobs", "1", "--out", str(tmp_path / "runs")])
    assert not done.value.code
    script = sbatch.with_suffix(".script").read_text()
    assert "#SBATCH --cpus-per-task=4\n" in script
    assert "--threads=4" in script


def test_other_machines_find_the_data_of_a_grid_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (cell,) = grid("runs", ["split-digits"], ["gpm"], [0], data_dir="data", device="cpu")
    there = for_workers(cell, "cuda:1").experiment
    assert (there.data_dir, there.device) == (str(tmp_path / "data"), "cuda:1")
    assert for_workers(cell, None).experiment.device == "cpu"
    (cell,) = grid("runs", ["split-digits"], ["gpm"], [0], data_dir="~/data")
    assert for_workers(cell, None).experiment.data_dir == os.path.expanduser("~/data")


def test_slurm_runs_the_same_grid_in_an_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stand-in accepts the script; here it is executed as a task of the array would be."""
    (tmp_path / "bin").mkdir()
    sbatch, out = tmp_path / "bin" / "sbatch", tmp_path / "my runs"
    sbatch.write_text('#!/bin/sh\nfor script; do :; done\ncp "$script" "$0.script"\necho "4711;cluster"\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert not command("--set", "threshold=0.9,0.95", "--on", "slurm", "--jobs", "3", "--out", str(out))
    assert capsys.readouterr().out.startswith("submitted job 4711 to Slurm: 3 array tasks for 2 runs")
    script = sbatch.with_suffix(".script")
    assert "#SBATCH --array=0-2\n" in script.read_text()
    assert "#SBATCH --cpus-per-task=1\n" in script.read_text()
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    small: dict[str, Any] = {"tasks": 2, "epochs": 1, "train_per_task": 20}
    cells = grid(out, ["split-digits"], ["gpm"], [0], {"threshold": [0.9, 0.95]}, **small)
    assert all((cell.directory / FILE_NAME).exists() for cell in cells)
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    assert command("--on", "slurm", "--jobs", "3", "--out", str(out)) == 2
    assert capsys.readouterr().err.endswith("slurm.sh: sbatch: error: invalid partition\n")
