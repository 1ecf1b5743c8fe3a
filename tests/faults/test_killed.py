"""A run that is killed again and again ends with the same bits as one that never was."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from cuber.experiments import Experiment
from cuber.methods import METHODS
from cuber.runs.checkpoint import Checkpoints
from tests.faults.killed import attempt

KILLS = int(os.environ.get("CUBER_KILLS", "2"))
"""Per method; ``make test-faults`` has more of them."""


def experiment(method: str) -> Experiment:
    """Small, with early stopping, so that there are best weights and a schedule to lose."""
    return Experiment("overlap-digits", method, seed=1, tasks=3, epochs=3, patience=1, factor=10.0, floor=0.004)


def outcome(directory: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The result without what clocks say, and the final weights."""
    result = json.loads((directory / "result.json").read_text())
    del result["seconds"]
    for epoch in (epoch for epochs in result["history"] for epoch in epochs):
        del epoch["seconds"]
    return result, Checkpoints(directory / "checkpoint").load()["model"]


@pytest.mark.parametrize("method", METHODS)
def test_killed_at_random_moments_and_resumed_until_finished(method: str, tmp_path: Path) -> None:
    moments = attempt(experiment(method), tmp_path / "undisturbed")
    assert moments is not None
    chosen, killed, finished = random.Random(method), 0, 0
    while killed < KILLS:
        # A resumed run is shorter than a whole one: some come to their end, and the next begins anew.
        run = tmp_path / f"run-{finished}"
        if attempt(experiment(method), run, chosen.randrange(1, moments)) is None:
            killed += 1
        else:
            assert_same(run, tmp_path / "undisturbed")
            finished += 1
    last = tmp_path / f"run-{finished}"
    assert attempt(experiment(method), last) is not None
    assert_same(last, tmp_path / "undisturbed")


def assert_same(run: Path, undisturbed: Path) -> None:
    (result, final), (expected, weights) = outcome(run), outcome(undisturbed)
    assert result == expected
    assert final.keys() == weights.keys()
    for name, tensor in final.items():
        assert torch.equal(tensor, weights[name]), name
