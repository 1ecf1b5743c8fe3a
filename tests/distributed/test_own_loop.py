"""Two processes with half of each batch stay equal to the bit, and learn what one process learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cuber.core import distributed
from cuber.methods import METHODS
from tests.distributed.loops import MODELS, SETTINGS, TASKS, Case, cases, data, differences, distance, train
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


def infer_own_part(case: Case) -> list[Tensor]:
    """What is inferred for this process's part of the samples, one by one in the first process, at once in others."""
    state = train(case)
    model = MODELS[case.model]()
    model.load_state_dict(state["model"])
    learner = METHODS[case.method](model, **SETTINGS[case.method])
    learner.load_state_dict(state["learner"])
    x = torch.cat([data(task)[0] for task in range(TASKS)])
    own = x[distributed.share(len(x)).part]
    parts = [
        (*learner.infer_task(some), learner.predict(some).output)
        for some in own.split(1 if distributed.is_active() and not distributed.rank() else len(own))
    ]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def test_processes_infer_the_tasks_of_different_samples_without_waiting_for_each_other(tmp_path: Path) -> None:
    case = Case("cuber", "SGD", "heads")
    both = in_processes(tmp_path, infer_own_part, case)
    alone = infer_own_part(case)
    for column, (first, second) in zip(alone, zip(*both, strict=True), strict=True):
        torch.testing.assert_close(torch.cat([first, second]), column, atol=1e-4, rtol=1e-4)
