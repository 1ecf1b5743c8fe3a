"""OWM goes where the recursion of its paper goes, and where its limits say that it must."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import HAT, OWM, FineTune
from cuber.networks import MLP
from tests.loops import OPTIMIZERS, MakeOptimizer, learn, logits, loss_fn, sgd, train
from tests.models import CASES, CLASSES, Case, Loader, Pooled
from tests.oracles.dense import projector
from tests.oracles.owm import SlowOWM

LR, TASKS = 0.3, 3
SEQUENCE = Case("sequence", lambda: Pooled(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5, bias=False), width=5), (4, 6))
NAMES = [
    "mlp",
    "mlp without bias",
    "cnn",
    "grouped strided dilated cnn",
    "conv1d",
    "conv3d",
    "layer used twice",
    "tied layers",
    "many heads",
]
AVERAGED = 7
"""Neither the batches nor the samples of a task are a multiple of it."""


@pytest.mark.parametrize("case", [*(CASES[name] for name in NAMES), SEQUENCE], ids=lambda case: case.name)
def test_every_step_is_that_of_the_recursion(case: Case) -> None:
    model = case.model(0, torch.float64)
    slow_model: Any = copy.deepcopy(model)
    learner = OWM(model, averaged=AVERAGED)
    count = len(learner.layers)
    learner.alpha = [0.02 * (place + 1) for place in range(count)]
    learner.alpha_decay = [(0.1, 1.0, 0.4)[place % 3] for place in range(count)]
    slow = SlowOWM(slow_model, LR, learner.alpha, learner.alpha_decay, AVERAGED)
    for task in range(TASKS):
        loader = case.loader(task, samples=30, batch_size=4, dtype=torch.float64)
        learner.begin_task(loader, loss_fn)
        if case.name == "many heads":
            slow_model.select_task(task)
        optimizer = learner.wrap(sgd_at(LR, learner))
        for x, y in loader:
            optimizer.zero_grad()
            loss = learner.loss((x, y))
            loss.backward()
            optimizer.step()
            slow_loss, gradients = slow.step(x, y)
            assert float(loss.detach()) == pytest.approx(slow_loss, rel=1e-10)
            for layer, gradient, (module, *_) in zip(learner.layers.values(), gradients, slow.layers, strict=True):
                assert close(layer.gradient(), gradient), layer.name
                assert close(layer.matrix().detach(), slow.matrix(module)), layer.name
        learner.end_task(loader)
        slow.end_task(torch.cat([x for x, _ in loader]))
        for inverse, P in zip(learner.memory.values(), slow.P, strict=True):
            assert close(torch.linalg.inv(inverse), P)
            assert P.trace() < len(P) - 0.5, "P is the identity, so nothing is shown"


def sgd_at(lr: float, learner: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(learner.parameters(), lr=lr)


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).norm() <= 1e-9 * theirs.norm() + 1e-14)


@pytest.mark.parametrize("alpha", [1.0, 1e-3, 1e-6])
def test_thousands_of_rank_one_updates_end_where_one_inversion_does(alpha: float) -> None:
    torch.manual_seed(0)
    spectrum = 10.0 ** -torch.arange(40).div(10)  # directions from strong to almost unseen
    x = torch.randn(3000, 40, dtype=torch.float64) * spectrum
    learner = OWM(nn.Linear(40, 2, bias=False).double(), alpha=alpha, averaged=1)
    loader = [(x, torch.zeros(len(x), dtype=torch.long))]
    learn(learner, loader)
    P = torch.eye(40, dtype=torch.float64)
    for vector in x:
        k = P @ vector / (alpha + vector @ P @ vector)
        P = P - torch.outer(k, vector) @ P
    found = torch.linalg.inv(learner.memory["linear"])
    # Rounding of the sum shows where P is 1: no more than that of its largest entry, which is as 1 / alpha.
    assert (found - P).abs().max() < 1e-12 / alpha
    assert (found - P).norm() < 1e-9 * P.norm()


def disjoint(task: int, dtype: torch.dtype = torch.float64) -> Loader:
    """Tasks whose inputs are orthogonal to those of all the others: four of twelve rotated directions each."""
    generator = torch.Generator().manual_seed(5)
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=generator, dtype=torch.float64)).Q
    generator.manual_seed(task)
    x = torch.randn(24, 4, generator=generator, dtype=torch.float64) @ rotation[4 * task : 4 * task + 4]
    y = torch.randint(CLASSES, (24,), generator=generator)
    return list(zip(x.to(dtype).split(6), y.split(6), strict=True))


@pytest.mark.parametrize("alpha", [1.0, 1e-6])
def test_orthogonal_inputs_are_learned_as_by_plain_training_and_nothing_is_forgotten(alpha: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(12, CLASSES, bias=False).double()
    owm, plain = OWM(copy.deepcopy(model), alpha=alpha, averaged=3), FineTune(model)
    answers = []
    for task in range(3):
        for learner in (owm, plain):
            learn(learner, disjoint(task), lambda parameters: torch.optim.SGD(parameters, lr=0.5), epochs=4)
        assert torch.allclose(owm.model.weight, plain.model.weight, rtol=0, atol=1e-9)
        answers.append(logits(owm, task, disjoint(task)[0][0]))
    for task, answer in enumerate(answers):
        assert torch.allclose(logits(owm, task, disjoint(task)[0][0]), answer, rtol=0, atol=1e-12)


def moved(learner: Any, case: Case, make: MakeOptimizer = sgd) -> tuple[float, float]:
    """How far the answers to the first task's samples and to the second's move while the second is learned."""
    first, second = case.loader(0, samples=6), case.loader(1)
    learn(learner, first, epochs=3)
    x, new = first[0][0], second[0][0]
    old_before, new_before = logits(learner, 0, x), logits(learner, None, new)
    learn(learner, second, make, epochs=3)
    return tuple(  # type: ignore[return-value]
        float((after - before).norm())
        for after, before in ((logits(learner, 0, x), old_before), (logits(learner, None, new), new_before))
    )


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_old_answers_stay_where_plain_training_moves_them(name: str, make: MakeOptimizer) -> None:
    """Every sample is a mean of its own; there are fewer than any layer has inputs, so that directions stay free."""
    build = {"mlp": lambda: MLP(8, 40, 30, CLASSES, bias=True), "cnn": CASES["cnn"].build}[name]
    case = Case(name, build, CASES[name].shape)
    old, new = moved(OWM(case.model(), alpha=1e-5, averaged=1), case, make)
    plain_old, _ = moved(FineTune(case.model()), case, make)
    assert old < 0.02 * plain_old
    assert new > 5 * old


def test_a_huge_alpha_holds_nothing() -> None:
    case = CASES["cnn"]
    owm, plain = (kind(case.model(dtype=torch.float64)) for kind in (OWM, FineTune))
    owm.alpha = 1e12
    for task in range(3):
        for learner in (owm, plain):
            learn(learner, case.loader(task, dtype=torch.float64), OPTIMIZERS["momentum"])
    for ours, theirs in zip(owm.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-9)


def test_a_tiny_alpha_makes_the_projector_on_all_that_old_inputs_do_not_span() -> None:
    torch.manual_seed(0)
    model = nn.Linear(12, CLASSES).double()
    learner = OWM(model, alpha=1e-8, averaged=1)
    inputs = []
    for _ in range(2):
        x = torch.randn(4, 12, dtype=torch.float64)
        learn(learner, [(x, torch.randint(CLASSES, (4,)))])
        inputs.append(torch.cat([x, torch.ones(4, 1, dtype=torch.float64)], dim=1))
    P = torch.linalg.inv(learner.memory["linear"])
    assert torch.allclose(P, torch.eye(13, dtype=torch.float64) - projector(torch.cat(inputs).T), atol=1e-6)


def test_the_first_task_is_learned_as_by_plain_training() -> None:
    case = CASES["residual block"]
    owm, plain = OWM(case.model(), alpha=1e-6), FineTune(case.model())
    for learner in (owm, plain):
        learn(learner, case.loader(0), OPTIMIZERS["Adam"], epochs=3)
    assert all(
        torch.equal(ours, theirs) for ours, theirs in zip(owm.model.parameters(), plain.model.parameters(), strict=True)
    )


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_whatever_an_optimizer_makes_of_a_gradient_its_change_is_multiplied_with_p(make: MakeOptimizer) -> None:
    case = CASES["mlp"]
    learner = OWM(case.model(dtype=torch.float64), alpha=0.05)
    learn(learner, case.loader(0, dtype=torch.float64))
    loader = case.loader(1, samples=8, dtype=torch.float64)
    free_model = copy.deepcopy(learner.model)
    before = {name: layer.matrix().detach().clone() for name, layer in learner.layers.items()}
    learner.begin_task(loader, loss_fn)
    train(learner, learner.wrap(make(learner.parameters())), loader)
    free = FineTune(free_model)
    learn(free, loader, make)
    for place, (name, layer) in enumerate(learner.layers.items()):
        module: Any = free_model.layers[place]
        unhindered = torch.cat([module.weight, module.bias[:, None]], dim=1).detach() - before[name]
        expected = unhindered @ torch.linalg.inv(learner.memory[name])
        assert unhindered.norm() > 1e-3
        assert torch.allclose(layer.matrix().detach() - before[name], expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", [OWM, HAT])
def test_a_step_that_was_broken_off_is_not_taken_up_by_the_next(kind: type) -> None:
    """Adam's change is cut down after the step, from where the weights were before that step and no other."""

    class Breaking(torch.optim.Adam):
        breaks = True

        def step(self, closure: Any = None) -> Any:
            if self.breaks:
                raise MemoryError
            return super().step(closure)

    case = CASES["mlp"]
    learner = kind(case.model())
    learn(learner, case.loader(0))
    learner.begin_task(case.loader(1), loss_fn)
    optimizer = learner.wrap(Breaking(learner.parameters(), lr=0.01))
    (x, y), *_ = case.loader(1)
    loss_fn(learner.model(x), y).backward()
    with pytest.raises(MemoryError):
        optimizer.step()
    optimizer.breaks = False
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(1.0)
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    optimizer.step()
    after = learner.model.parameters()
    assert max(float((now - was).abs().max()) for now, was in zip(after, before, strict=True)) < 0.1
