"""Thresholds alone turn CUBER into TRGP, GPM and plain fine-tuning, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuber import CUBER, GPM, TRGP, FineTune
from tests.loops import OPTIMIZERS, MakeOptimizer, learn, loss_fn, same_bits, scalings, sgd, train
from tests.models import CASES, Case, cases


def after_three_tasks(kind: type, case: Case, make: MakeOptimizer = sgd, **settings: Any) -> Any:
    learner = kind(case.model(), **settings)
    for task in range(3):
        torch.manual_seed(task)  # dropout
        learn(learner, batches(case, task), make, epochs=2)
    return learner


def batches(case: Case, task: int) -> Any:
    return case.loader(task, samples=12, batch_size=6)


def same_learners(one: Any, other: Any) -> bool:
    pools = zip(one.memory.values(), other.memory.values(), strict=True)
    return same_bits(one.model, other.model) and all(
        torch.equal(a.basis, b.basis) and torch.equal(a.owners, b.owners) for a, b in pools
    )


@pytest.mark.parametrize("case", cases())
def test_thresholds_that_nothing_reaches_make_trgp_and_gpm_of_cuber(case: Case) -> None:
    cuber = after_three_tasks(CUBER, case, eps1=0.3, eps2=1.1)
    trgp = after_three_tasks(TRGP, case, eps1=0.3)
    assert any(scalings(trgp, task) for task in range(3)), "nothing was scaled, so nothing was compared"
    assert same_learners(cuber, trgp)
    for task in range(3):
        ours = scalings(cuber, task)
        assert all(torch.equal(ours[name].matrix, scaling.matrix) for name, scaling in scalings(trgp, task).items())
    gpm = after_three_tasks(GPM, case)
    assert not same_bits(gpm.model, trgp.model)
    for kind in (TRGP, CUBER):
        assert same_learners(after_three_tasks(kind, case, eps1=1.1), gpm)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_same_holds_with_every_optimizer(make: MakeOptimizer) -> None:
    case = CASES["mlp"]
    assert same_learners(
        after_three_tasks(CUBER, case, make, eps1=0.3, eps2=1.1), after_three_tasks(TRGP, case, make, eps1=0.3)
    )
    assert same_learners(after_three_tasks(CUBER, case, make, eps1=1.1), after_three_tasks(GPM, case, make))


def test_selecting_no_old_task_is_gpm_too() -> None:
    case = CASES["mlp"]
    assert same_learners(after_three_tasks(CUBER, case, selected=0), after_three_tasks(GPM, case))


def all_in_regime_3(case: Case, penalty: str) -> CUBER:
    """Learn three tasks with all old tasks in regime 3, no penalty, and a learning rate of 0 for scalings."""
    learner = CUBER(case.model(), eps1=0.0, eps2=-1.0, selected=99, lam=0.0, penalty=penalty, uncovered="train")
    for task in range(3):
        loader = batches(case, task)
        learner.begin_task(loader, loss_fn)
        assert all(regime.number == 3 for by_task in learner.regimes[-1].values() for regime in by_task.values())
        named = dict(learner.named_parameters())
        groups = [
            {"params": [p for name, p in named.items() if ".scaling." not in name], "lr": 0.05},
            {"params": [p for name, p in named.items() if ".scaling." in name], "lr": 0.0},
        ]
        train(learner, learner.wrap(torch.optim.SGD([g for g in groups if g["params"]])), loader, epochs=2)
        learner.end_task(loader)
    return learner


@pytest.mark.parametrize("penalty", ["norm", "squared", "energy"])
@pytest.mark.parametrize("name", ["mlp without bias", "mlp", "cnn", "layer used twice", "many heads"])
def test_all_tasks_in_regime_3_without_a_penalty_is_plain_fine_tuning(name: str, penalty: str) -> None:
    case = CASES[name]
    plain = after_three_tasks(FineTune, case)
    free = all_in_regime_3(case, penalty)
    if name in ("mlp without bias", "cnn"):  # the same kernels run
        assert same_bits(free.model, plain.model)
    for ours, theirs in zip(free.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_fine_tuning_is_training_without_a_learner() -> None:
    case = CASES["mlp"]
    learner = after_three_tasks(FineTune, case)
    bare = case.model()
    optimizer = sgd(bare.parameters())
    for task in range(3):
        for x, y in batches(case, task) * 2:
            optimizer.zero_grad()
            loss_fn(bare(x), y).backward()
            optimizer.step()
    assert same_bits(learner.model, bare)
