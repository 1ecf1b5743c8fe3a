"""Grids on a Dask scheduler: a worker is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cuber.experiments import campaign
from cuber.experiments.campaign import FINISHED, STOPPED, run_grid
from cuber.experiments.engines import open_engine

distributed = pytest.importorskip("distributed")
pytest.importorskip("psutil")

from tests.cluster.lost_runs import LoseMachine, assert_as_if_nothing_had_happened, six_runs  # noqa: E402


def test_a_run_whose_worker_was_killed_goes_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "POLL_SECONDS", 0.1)
    cluster = distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=None)
    module = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
    command = [*module, "--no-nanny", "--no-dashboard", "--nthreads=1", f"--local-directory={tmp_path}"]
    workers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]

    def kill(parents: set[int]) -> None:
        (worker,) = [worker for worker in workers if worker.pid in parents]
        worker.kill()

    machine, engine = LoseMachine(kill), None
    try:
        engine = open_engine(cluster.scheduler_address.replace("tcp", "dask"), tmp_path)
        cells = six_runs(tmp_path / "runs")
        jobs = run_grid(cells, engine, join=True, watch=machine)
        assert [job.state for job in jobs] == [FINISHED] * 6, [job.message for job in jobs]
        assert machine.states == ["waiting", "running", "elsewhere", "waiting", "running", "finished"]
        assert_as_if_nothing_had_happened(cells, tmp_path / "local")

        def stop(jobs: object) -> None:
            engine.stop()

        (stopped, *_) = run_grid(six_runs(tmp_path / "stopped"), engine, join=True, jobs=1, watch=stop)
        assert stopped.state == STOPPED
    finally:
        machine.end()
        if engine is not None:
            engine.shutdown()
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        cluster.close()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".stop")]
