"""Without regime 3 the weights do not move along the pool: any optimizer, any model, every step of a task."""

from __future__ import annotations

import pytest
import torch

from cuber import CUBER, GPM, TRGP
from tests.loops import OPTIMIZERS, MakeOptimizer, Watch, learn, loss_fn, train, weights
from tests.models import CASES, Case, cases

optimizers = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
METHODS = {
    "GPM": (GPM, {"threshold": 0.8}),
    "TRGP": (TRGP, {"threshold": 0.8, "eps1": 0.1}),
    "CUBER": (CUBER, {"threshold": 0.8, "eps1": 0.1, "eps2": 1.1}),
}


def second_task(kind: type, settings: dict, case: Case, make: MakeOptimizer, **how: object) -> None:
    """One task to protect, then one to learn, watched after every step."""
    learner = kind(case.model(), **settings)
    learn(learner, case.loader(0, samples=4, batch_size=4))
    loader = case.loader(1)
    learner.begin_task(loader, loss_fn)
    watch = Watch.over(learner)
    optimizer = learner.wrap(make(learner.parameters()))

    train(learner, optimizer, loader, after_step=watch.held, **how)  # type: ignore[arg-type]
    learner.end_task(loader)
    watch.held()
    assert watch.moved() > 1e-3, "nothing was learnt, so nothing was shown"


@optimizers
@pytest.mark.parametrize("case", cases())
def test_protected_directions_hold_still_in_every_model_under_every_optimizer(case: Case, make: MakeOptimizer) -> None:
    second_task(GPM, {"threshold": 0.8}, case, make, epochs=2)


@optimizers
@pytest.mark.parametrize("method", METHODS)
def test_protected_directions_hold_still_in_every_method(method: str, make: MakeOptimizer) -> None:
    second_task(*METHODS[method], CASES["mlp"], make, epochs=2)


OTHERS = {
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.05),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "SGD by loops": lambda p: torch.optim.SGD(p, lr=0.05, foreach=False),
    "maximizing decay": lambda p: torch.optim.SGD(p, lr=0.01, maximize=True, weight_decay=0.1),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS.keys())
def test_protected_directions_hold_still_under_the_less_known_optimizers(make: MakeOptimizer) -> None:
    second_task(GPM, {"threshold": 0.8}, CASES["mlp"], make, epochs=2)


def weights_and_biases(learner: GPM) -> tuple[list, list]:
    named = dict(learner.named_parameters())
    return [p for n, p in named.items() if "bias" not in n], [p for n, p in named.items() if "bias" in n]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_biases_with_a_learning_rate_of_their_own_are_held_too(momentum: float) -> None:
    case = CASES["mlp"]
    learner = GPM(case.model(), threshold=0.8)
    learn(learner, case.loader(0, samples=4))
    learner.begin_task(case.loader(1), loss_fn)
    watch = Watch.over(learner)
    of_weights, of_biases = weights_and_biases(learner)
    groups = [{"params": of_weights, "lr": 0.05}, {"params": of_biases, "lr": 0.2}]
    optimizer = learner.wrap(torch.optim.SGD(groups, momentum=momentum))
    train(learner, optimizer, case.loader(1), end_epochs=False)
    watch.held()


def test_weights_trained_without_their_biases_are_held_too() -> None:
    case = CASES["mlp"]
    learner = GPM(case.model(), threshold=0.8)
    learn(learner, case.loader(0, samples=4))
    learner.begin_task(case.loader(1), loss_fn)
    watch = Watch.over(learner)
    optimizer = learner.wrap(torch.optim.SGD(weights_and_biases(learner)[0], lr=0.05))
    train(learner, optimizer, case.loader(1), end_epochs=False)
    watch.held()


def test_weights_and_biases_under_two_optimizers_are_held_too() -> None:
    case = CASES["mlp"]
    learner = GPM(case.model(), threshold=0.8)
    learn(learner, case.loader(0, samples=4))
    learner.begin_task(case.loader(1), loss_fn)
    watch = Watch.over(learner)
    of_weights, of_biases = weights_and_biases(learner)
    optimizers = [learner.wrap(torch.optim.SGD(of_biases, lr=0.1)), learner.wrap(torch.optim.Adam(of_weights, lr=0.01))]
    for x, y in case.loader(1):
        learner.model.zero_grad()
        loss_fn(learner.model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
            watch.held()


def test_two_optimizers_that_share_the_layers_between_them_protect_all_of_them() -> None:
    case = CASES["mlp without bias"]
    learner = GPM(case.model(), threshold=0.8)
    learn(learner, case.loader(0, samples=4))
    learner.begin_task(case.loader(1), loss_fn)
    watch = Watch.over(learner)
    first, *rest = learner.parameters()
    optimizers = [learner.wrap(torch.optim.SGD([first], lr=0.1)), learner.wrap(torch.optim.AdamW(rest, lr=0.01))]
    for x, y in case.loader(1):
        learner.model.zero_grad()
        loss_fn(learner.model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
            watch.held()
    assert watch.moved() > 1e-3


def test_accumulated_gradients_are_projected_as_their_sum() -> None:
    case = CASES["cnn"]
    learners = [GPM(case.model(), threshold=0.8) for _ in range(2)]
    loader = case.loader(1, samples=16, batch_size=16)
    (x, y) = loader[0]
    for learner, parts in zip(learners, (1, 4), strict=True):
        learn(learner, case.loader(0, samples=4))
        learner.begin_task(loader, loss_fn)
        watch = Watch.over(learner)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        for part_x, part_y in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (loss_fn(learner.model(part_x), part_y) / parts).backward()
        optimizer.step()
        watch.held()
    for one, other in zip(weights(learners[0]).values(), weights(learners[1]).values(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_clipped_gradients_stay_outside_the_pool() -> None:
    case = CASES["mlp"]
    learner = GPM(case.model(), threshold=0.8)
    learn(learner, case.loader(0, samples=4))
    learner.begin_task(case.loader(1), loss_fn)
    watch = Watch.over(learner)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=1.0))
    for x, y in case.loader(1):
        optimizer.zero_grad()
        loss_fn(learner.model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 0.1)
        optimizer.step()
    watch.held()
