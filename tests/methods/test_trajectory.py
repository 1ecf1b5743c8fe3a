"""Our learners and the dense oracle go the same way, step by step, for three tasks."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from cuber import CUBER, GPM, TRGP
from cuber.networks import MLP
from tests.loops import logits, loss_fn, weights
from tests.models import Loader
from tests.oracles.trajectory import SlowLearner

LR, EPOCHS, TASKS = 0.4, 6, 3
SHARED = {"threshold": 0.9, "threshold_step": 0.0}
CUBERS = {
    "CUBER": {"eps1": 0.5, "eps2": -0.02, "lam": 0.05, "penalty": "norm", "check": "epoch", "keep": 0.3},
    "CUBER, squared penalty": {"eps1": 0.5, "eps2": -0.02, "lam": 0.5, "penalty": "squared", "check": "epoch"},
    "CUBER, penalty by energy": {"eps1": 0.5, "eps2": -0.02, "lam": 0.5, "penalty": "energy", "check": "epoch"},
    "CUBER, penalty beyond measure": {"eps1": 0.5, "eps2": -0.1, "lam": 50.0, "penalty": "energy", "check": "epoch"},
    "CUBER, checked at every step": {"eps1": 0.4, "eps2": -0.3, "lam": 0.05, "penalty": "norm", "check": "step"},
    "CUBER, squared, every step": {"eps1": 0.4, "eps2": -0.3, "lam": 0.5, "penalty": "squared", "check": "step"},
    "CUBER, always regime 3": {"eps1": 0.0, "eps2": -1.0, "lam": 0.0, "penalty": "norm", "check": "epoch"},
}
METHODS: dict[str, tuple[type, dict[str, Any]]] = {
    "GPM": (GPM, {}),
    "TRGP": (TRGP, {"eps1": 0.5}),
    **{name: (CUBER, settings) for name, settings in CUBERS.items()},
}


def loader_of(task: int) -> Loader:
    """18 samples that fill 4 of 12 dimensions; each task shares two of them with the one before."""
    generator = torch.Generator().manual_seed(task)
    x = torch.zeros(18, 12, dtype=torch.float64)
    x[:, 2 * task : 2 * task + 4] = 1.5 * torch.randn(18, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (18,), generator=generator)
    return list(zip(x.split(7), y.split(7), strict=True))


@cache
def both(name: str, bias: bool) -> tuple[Any, SlowLearner, list[Any]]:
    """Three tasks learnt by us and by the oracle; also what regimes the oracle decided, task by task."""
    kind, settings = METHODS[name]
    torch.manual_seed(0)
    model = MLP(12, 14, 10, 3, bias=bias).double()
    learner = kind(model, **SHARED, **settings)
    slow = SlowLearner.around(
        list(weights(learner).values()),
        bias=bias,
        lr=LR,
        eps1=settings.get("eps1", 2.0),
        eps2=settings.get("eps2", 2.0),
        lam=settings.get("lam", 0.0),
        penalty=settings.get("penalty", "norm"),
        every_step=settings.get("check") == "step",
        threshold=SHARED["threshold"],
        keep=settings.get("keep", 0.1),
    )
    decided = []
    for task in range(TASKS):
        loader = loader_of(task)
        learner.begin_task(loader, loss_fn)
        slow.begin_task(loader)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=LR))
        for _ in range(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                optimizer.step()
                slow.step((x, y))
            learner.end_epoch()
            slow.end_epoch(loader)
        learner.end_task(loader)
        slow.end_task(loader)
        decided.append([(dict(layer.regimes), dict(layer.fell)) for layer in slow.layers])
    return learner, slow, decided


@pytest.mark.parametrize("bias", [True, False], ids=["with bias", "without bias"])
@pytest.mark.parametrize("name", METHODS)
def test_a_learner_goes_where_the_dense_oracle_goes(name: str, bias: bool) -> None:
    learner, slow, decided = both(name, bias)
    for (layer_name, ours), layer in zip(weights(learner).items(), slow.layers, strict=True):
        assert (ours - layer.weight).norm() < 1e-9 * layer.weight.norm(), layer_name
        pool = learner.memory[layer_name]
        assert pool.size == layer.pool.shape[1]
        for task in range(TASKS):
            ours_dense = pool.basis_of(task) @ pool.basis_of(task).T
            assert (ours_dense - layer.dense(task)).abs().max() < 1e-7
    for task, regimes in enumerate(decided):
        ours = [
            (
                {old: r.number for old, r in by_task.items()},
                {o: r.demoted_at for o, r in by_task.items() if r.demoted_at is not None},
            )
            for by_task in learner.regimes[task].values()
        ]
        assert ours == regimes
    x = torch.randn(9, 12, dtype=torch.float64)
    for task in range(TASKS):
        assert torch.allclose(logits(learner, task, x), slow.logits(task, x), rtol=1e-8, atol=1e-9)


def test_the_trajectories_compared_meet_every_regime_and_every_way_out_of_it() -> None:
    met: set[int] = set()
    falls: set[str] = set()
    for name in CUBERS:
        for bias in (True, False):
            _, _, decided = both(name, bias)
            for regimes, fell in (pair for task in decided for pair in task):
                met |= set(regimes.values())
                if fell:
                    falls.add(name)
    assert met == {1, 2, 3}
    assert {"CUBER", "CUBER, checked at every step"} <= falls
