"""Two processes with half of each batch stay equal to the bit, and learn what one process learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cuber.methods import METHODS
from tests.distributed.loops import Case, cases, differences, distance, train
from tests.distributed.processes import in_processes


def train_all(chosen: list[Case]) -> list[dict[str, Any]]:
    return [train(case) for case in chosen]


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_learn_what_one_does(method: str, tmp_path: Path) -> None:
    chosen = cases(method)
    first, second = in_processes(tmp_path, train_all, chosen)
    for case, one, other in zip(chosen, first, second, strict=True):
        assert list(differences(one, other)) == [], case
        if case.model not in ("batch norm", "dropout"):  # which depend on what else is in a batch, and on chance
            alone = train(case)
            assert distance(one["model"], alone["model"]) < 1e-4, case
            assert one["learner"]["tasks"] == alone["learner"]["tasks"]


def train_around(chosen: list[Case]) -> list[dict[str, Any]]:
    return [train(case, around=True) for case in chosen]


def test_a_learner_around_one_ddp_module_for_all_tasks(tmp_path: Path) -> None:
    chosen = [Case("cuber", "SGD", "heads"), Case("ewc", "AdamW", "heads"), Case("hat", "SGD", "plain")]
    first, second = in_processes(tmp_path, train_around, chosen)
    for case, one, other in zip(chosen, first, second, strict=True):
        assert list(differences(one, other)) == [], case
        assert distance(one["model"], train(case)["model"]) < 1e-4, case
