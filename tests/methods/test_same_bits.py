"""Same seed, same bits; and looking does not change what is looked at."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuber import AGEM, CUBER, ER, EWC, GPM, TRGP, FineTune
from tests.loops import learn, logits, loss_fn, same_bits, train
from tests.models import CASES, Case, cases


def run(case: Case, kind: type = CUBER, **settings: Any) -> Any:
    learner = kind(case.model(), **settings)
    torch.manual_seed(1)
    for task in range(3):
        learn(learner, case.loader(task))
    return learner


@pytest.mark.parametrize("case", cases())
def test_the_same_seed_gives_the_same_bits(case: Case) -> None:
    first, second = run(case, eps1=0.2, eps2=-0.1), run(case, eps1=0.2, eps2=-0.1)
    assert same_bits(first.model, second.model)
    assert first.regimes == second.regimes
    for task in range(3):
        x = case.inputs(9, 5)
        assert torch.equal(logits(first, task, x), logits(second, task, x))


@pytest.mark.parametrize("case", cases())
def test_training_starts_at_the_plain_network(case: Case) -> None:
    learner = TRGP(case.model(), eps1=0.0)
    learn(learner, case.loader(0))
    learner.begin_task(case.loader(1), loss_fn)
    assert all(layer.scaling for layer in learner.layers.values())
    many = case.inputs(9, 40)  # more than any layer has outputs: the weight is scaled, and the kernels are the same
    assert torch.equal(logits(learner, 1, many), logits(learner, None, many))
    few = case.inputs(9, 1)
    assert torch.allclose(logits(learner, 1, few), logits(learner, None, few), atol=1e-6)


def test_after_a_task_its_scalings_are_as_fixed_as_anybody_s() -> None:
    learner = TRGP(CASES["mlp"].model(), eps1=0.0)
    for task in range(2):
        learn(learner, CASES["mlp"].loader(task))
    shown = [layer.scaling.matrix for layer in learner.layers.values() if layer.scaling]
    assert shown
    assert not any(matrix.requires_grad for matrix in shown)


@pytest.mark.parametrize("kind", [FineTune, EWC, AGEM, ER, GPM, TRGP, CUBER])
def test_a_learner_draws_no_random_numbers(kind: type) -> None:
    case = CASES["residual block"]
    learner = kind(case.model())
    loader = case.loader(0)
    for task in range(2):
        state = torch.get_rng_state()
        learner.begin_task(loader, loss_fn)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        train(learner, optimizer, loader)
        learner.end_task(loader)
        logits(learner, task, case.inputs(0, 3))
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["mlp", "residual block", "many heads"])
def test_evaluating_old_tasks_in_the_middle_of_one_changes_nothing(name: str) -> None:
    case = CASES[name]
    learners = [CUBER(case.model(), eps1=0.0, eps2=-1.0) for _ in range(2)]
    for learner, curious in zip(learners, (True, False), strict=True):
        for task in range(3):
            loader, x = case.loader(task), case.inputs(3, 4)
            learner.begin_task(loader, loss_fn)
            optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.05, momentum=0.9))

            def look(learner: CUBER = learner, task: int = task, x: torch.Tensor = x) -> None:
                for other in [*range(task + 1), None]:
                    logits(learner, other, x)

            train(learner, optimizer, loader, after_step=look if curious else lambda: None)
            learner.end_task(loader)
    assert same_bits(learners[0].model, learners[1].model)


def test_views_may_be_nested_and_end_where_they_began() -> None:
    case = CASES["many heads"]
    learner = run(case, eps1=0.0)
    x = case.inputs(0, 3)
    with torch.no_grad():
        alone = [logits(learner, task, x) for task in range(3)]
        outside = learner.model(x)
        with learner.as_task(0), learner.as_task(1), learner.as_task(None), learner.as_task(2) as model:
            assert torch.equal(model(x), alone[2])
        assert torch.equal(learner.model(x), outside)
        with pytest.raises(KeyError), learner.as_task(0):
            raise KeyError
        assert torch.equal(learner.model(x), outside)
