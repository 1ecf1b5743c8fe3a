"""A capped pool drops the columns that matter least, and all that refers to them follows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, GPM, TRGP, CuberError
from cuber.core.pooled import PooledMethod
from tests.loops import learn, logits
from tests.models import CASES

CASE = CASES["mlp"]
METHODS: dict[str, tuple[type[PooledMethod], dict[str, Any]]] = {
    "GPM": (GPM, {}),
    "TRGP": (TRGP, {"eps1": 0.0}),
    "CUBER, norm": (CUBER, {"eps1": 0.0, "eps2": -1.0, "penalty": "norm"}),
    "CUBER, energy": (CUBER, {"eps1": 0.0, "eps2": -1.0}),
}


def effect(learner: PooledMethod, name: str, task: int) -> Tensor:
    """What a task's scaling adds to the identity, d x d: ``U S U'``."""
    memory = learner.memory[name]
    learned = memory.scalings[task]
    if learned is None:
        return torch.zeros(memory.dimension, memory.dimension)
    scaling = learner.known_scaling(learned, name)
    return scaling.basis @ scaling.dense() @ scaling.basis.mT


@pytest.mark.parametrize("outputs", [2, 12], ids=["with supports", "without supports"])
def test_all_that_refers_to_a_dropped_column_follows(outputs: int) -> None:
    model = nn.Sequential(nn.Linear(12, outputs, bias=False), nn.Linear(outputs, 3))
    learner = CUBER(model, eps1=0.0, eps2=1.1 if outputs == 2 else -1.0, selected=1, threshold=0.9)
    for task in range(3):
        generator = torch.Generator().manual_seed(task)
        x = torch.randn(40, 4, generator=generator) @ torch.randn(4, 12, generator=generator)
        learn(learner, [(x, torch.randint(3, (40,), generator=generator))])
    memory = learner.memory["0"]
    assert any(scaling is not None and bool(scaling.supports) == (outputs == 2) for scaling in memory.scalings)
    before = copy.deepcopy(memory)
    kept = torch.arange(memory.size) % 3 != 1
    projection = before.basis[:, kept] @ before.basis[:, kept].mT
    expected = [projection @ effect(learner, "0", task) @ projection for task in range(3)]
    memory.keep_columns(kept)
    assert torch.equal(memory.basis, before.basis[:, kept])
    for task in range(3):
        assert torch.allclose(effect(learner, "0", task), expected[task], atol=1e-6)
        own, was = memory.basis_of(task), before.basis_of(task)
        assert torch.allclose(own @ own.mT, projection @ was @ was.mT, atol=1e-6)
        energies, energies_were = memory.energies[task], before.energies[task]
        assert energies is not None
        assert energies_were is not None
        assert torch.allclose(
            own @ energies @ own.mT, projection @ was @ energies_were @ was.mT @ projection, atol=1e-6
        )
    learn(learner, [(torch.randn(8, 12), torch.randint(3, (8,)))])


@pytest.mark.parametrize("method", METHODS)
def test_tasks_that_never_used_a_dropped_column_keep_their_answers(method: str) -> None:
    """Two tasks in one half of the inputs, a third in the other, whose columns are dropped."""
    kind, settings = METHODS[method]
    learner = kind(nn.Sequential(nn.Linear(8, 6, bias=False), nn.Linear(6, 3)), **settings)
    samples = [torch.randn(30, 8) * torch.tensor(half).repeat_interleave(4) for half in ([1, 0], [1, 0], [0, 1])]
    for x in samples:
        learn(learner, [(x, torch.randint(3, (30,)))])
    memory = learner.memory["0"]
    answers = [logits(learner, task, samples[task]) for task in range(3)]
    memory.keep_columns(memory.columns_read([0, 1]) & ~(memory.owners[2] & ~memory.owners[:2].any(0)))
    for task in (0, 1):
        assert torch.allclose(logits(learner, task, samples[task]), answers[task], atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_stays_below_its_cap_and_learning_resumes(method: str) -> None:
    kind, settings = METHODS[method]
    learner = kind(CASE.model(), max_rank=[3, 4, 0], threshold=0.99, **settings)
    for task in range(4):
        learn(learner, CASE.loader(task))
        sizes = [memory.size for memory in learner.memory.values()]
        assert sizes[:2] == [3, 4]
        for memory in learner.memory.values():
            assert len(memory.importance) == memory.size == memory.owners.shape[1]
    assert sizes[2] > 4
    twin = kind(CASE.model(), max_rank=[3, 4, 0], threshold=0.99, **settings)
    twin.model.load_state_dict(learner.model.state_dict())
    twin.load_state_dict(learner.state_dict())
    for each in (learner, twin):
        learn(each, CASE.loader(4))
    x = CASE.loader(1)[0][0]
    for task in range(5):
        assert torch.equal(logits(learner, task, x), logits(twin, task, x))


def test_what_most_tasks_have_most_energy_along_stays() -> None:
    """Inputs along axes: the first is in all tasks, of the others the weakest goes."""
    learner = GPM(nn.Linear(6, 2, bias=False), threshold=1.0, max_rank=3)
    for axis, scale in ((1, 0.9), (2, 0.5), (3, 0.7)):
        x = torch.zeros(20, 6)
        x[:10, 0], x[10:, axis] = 1.0, scale
        learn(learner, [(x, torch.randint(2, (20,)))])
    basis = learner.memory["linear"].basis
    assert basis.abs().argmax(0).tolist() == [0, 1, 3]
    assert learner.memory["linear"].importance.tolist() == pytest.approx(
        [1 / 1.81 + 1 / 1.25 + 1 / 1.49, 0.81 / 1.81, 0.49 / 1.49], rel=1e-5
    )


def test_a_cap_that_nothing_reaches_changes_no_bit() -> None:
    one, other = (CUBER(CASE.model(), eps1=0.0, eps2=-1.0, max_rank=cap) for cap in (0, 100))
    for learner in (one, other):
        for task in range(3):
            learn(learner, CASE.loader(task))
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name])


def test_a_state_without_importances_is_of_an_earlier_version_and_loads() -> None:
    learner = GPM(CASE.model())
    learn(learner, CASE.loader(0))
    state = learner.state_dict()
    for memory in state["remembered"]["memory"].values():
        del memory["importance"]
    del state["settings"], state["weights"]
    twin = GPM(CASE.model(), max_rank=2)
    twin.load_state_dict(state)
    learn(twin, CASE.loader(1))
    assert all(memory.size == 2 for memory in twin.memory.values())


@pytest.mark.parametrize("cap", [-1, 2.5, "many", None, [1, 2]])
def test_a_cap_is_a_whole_number_for_all_layers_or_for_each(cap: Any) -> None:
    with pytest.raises(CuberError, match="max_rank"):
        learn(GPM(CASE.model(), max_rank=cap), CASE.loader(0))
