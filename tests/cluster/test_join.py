"""Several ``cuber grid --join`` on one directory: one is killed, and the other finishes everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("psutil")

from cuber.experiments.campaign import ELSEWHERE, FAILED, FINISHED, JobStatus, run_grid
from cuber.experiments.grid import grid
from cuber.runs.result import FILE_NAME
from cuber.training import RunDirectory
from tests.cluster.lost_runs import SECONDS, freeze_in_the_middle
from tests.experiments.test_grid import SMALL, InThisProcess

COMMAND = [sys.executable, "-c", "from cuber.cli.main import main; main()", "grid", "split-digits", "--join"]
RUNS = ["--methods=gpm", "--seeds=0-2", "--tasks=3", "--train-per-task=20", "--epochs=120", "--threads=1"]
POLL_SECONDS = 0.05


def test_one_of_two_is_killed_and_the_other_finishes_everything(tmp_path: Path) -> None:
    runs = [tmp_path / "split-digits" / "gpm" / f"seed-{seed}" for seed in range(3)]
    command, pipe = [*COMMAND, *RUNS, f"--out={tmp_path}"], subprocess.PIPE
    # Each in a process group of its own, as in a terminal or a job of a cluster.
    first, second = (subprocess.Popen(command, stdout=pipe, text=True, start_new_session=True) for _ in range(2))
    caught, deadline = None, time.monotonic() + SECONDS
    try:
        while caught is None and first.poll() is None:
            assert time.monotonic() < deadline
            with suppress(subprocess.TimeoutExpired):
                first.wait(POLL_SECONDS)
            for run in runs:
                if not (run / FILE_NAME).exists() and (frozen := freeze_in_the_middle(run)) is not None:
                    caught = (run, frozen)
                    break
        assert caught is not None
        run, frozen = caught
        killed, other = (first, second) if first.pid in {p.pid for p in frozen.parents()} else (second, first)
        os.killpg(killed.pid, signal.SIGKILL)
        frozen.send_signal(signal.SIGKILL)
        output, _ = other.communicate(timeout=SECONDS)
        assert other.returncode == 0, output
        assert f"3 of 3 runs finished; cuber compare {tmp_path} shows them" in output
        assert killed.wait() == -signal.SIGKILL
    finally:
        if caught is not None and caught[1].is_running():
            caught[1].send_signal(signal.SIGKILL)
        for process in (first, second):
            process.kill()
            process.communicate()
    assert all((directory / FILE_NAME).exists() for directory in runs)
    events = [json.loads(line)["event"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert "resumed" in events


@pytest.mark.parametrize("failed", [False, True])
def test_a_run_that_another_process_has_is_waited_for(tmp_path: Path, failed: bool) -> None:
    (cell,) = grid(tmp_path, ["split-digits"], ["finetune"], [0], threads=1, **SMALL, lr=1e30 if failed else None)
    if failed:
        run_grid([cell], InThisProcess())
    states: list[str] = []
    with RunDirectory(cell.directory) as held:

        def watch(jobs: Sequence[JobStatus]) -> None:
            states.append(jobs[0].state)
            if len(states) == 2:  # the other process comes to its end
                held.__exit__(None, None, None)

        (job,) = run_grid([cell], InThisProcess(), join=True, retry=True, watch=watch)
    assert states[:2] == [ELSEWHERE] * 2
    assert job.state == (FAILED if failed else FINISHED)
    assert job.message.startswith("failed before" if failed else "ACC")  # not tried again
