"""Grids on a Ray cluster: a node is removed without grace in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cuber.experiments import campaign
from cuber.experiments.campaign import FINISHED, run_grid
from cuber.experiments.engines import open_engine

ray = pytest.importorskip("ray")
pytest.importorskip("psutil")

from ray.cluster_utils import Cluster  # noqa: E402

from tests.cluster.lost_runs import LoseMachine, assert_as_if_nothing_had_happened, six_runs  # noqa: E402

SMALL = {"object_store_memory": 80_000_000}


def test_a_run_whose_node_is_gone_goes_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "POLL_SECONDS", 0.1)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    often = {"health_check_period_ms": 1000, "health_check_initial_delay_ms": 1000}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": often, **SMALL},
    )
    nodes: dict[int, Any] = {}

    def remove(parents: set[int]) -> None:
        (raylet,) = parents & nodes.keys()
        cluster.remove_node(nodes[raylet], allow_graceful=False)

    machine, engine = LoseMachine(remove), None
    try:
        for _ in range(2):
            node = cluster.add_node(num_cpus=1, **SMALL)
            nodes[node.all_processes["raylet"][0].process.pid] = node
        ray.init(cluster.address, log_to_driver=False)
        engine = open_engine("ray", tmp_path)
        cells = six_runs(tmp_path / "runs")
        jobs = run_grid(cells, engine, join=True, watch=machine)
        assert [job.state for job in jobs] == [FINISHED] * 6, [job.message for job in jobs]
        assert_as_if_nothing_had_happened(cells, tmp_path / "local")
    finally:
        machine.end()
        if engine is not None:
            engine.shutdown()
        ray.shutdown()
        cluster.shutdown()
