"""SoftCUBER against a dense oracle, and what its limits are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from cuber import GPM, FineTune, SoftCUBER
from cuber.layers import backends
from cuber.networks import MLP
from cuber.subspace import quadratic
from tests.loops import learn, logits, loss_fn, same_bits, weights
from tests.methods.test_trajectory import LR, SHARED, loader_of
from tests.models import CASES
from tests.oracles.soft_cuber import SlowSoftLearner

TASKS, EPOCHS = 3, 5
CASE = CASES["mlp"]


@pytest.mark.parametrize("backend", ["fast", "plain"])
@pytest.mark.parametrize("selected", [0, 2], ids=["without scalings", "with scalings"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    "settings", [{}, {"lam": 2.0, "curvature": 30.0, "old": 0.5, "every": 1}, {"old": 0.0}], ids=str
)
def test_it_takes_the_way_of_the_dense_oracle(
    selected: int, bias: bool, settings: dict[str, float], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quadratic, "NEGLIGIBLE", 0.0)  # the oracle drops nothing
    monkeypatch.setattr(backends, "WORTHWHILE", -1)  # projects inputs also where matrices are as small as here
    torch.manual_seed(0)
    model = MLP(12, 14, 10, 3, bias=bias).double()
    learner = SoftCUBER(model, selected=selected, backend=backend, **SHARED, **settings)
    slow = SlowSoftLearner.around(
        list(weights(learner).values()),
        bias=bias,
        lr=LR,
        eps1=learner.eps1,
        eps2=2.0,
        lam=0.0,
        penalty="norm",
        every_step=False,
        threshold=SHARED["threshold"],
        keep=0.1,
        selected=selected,
        soft=learner.lam,
        curvature=learner.curvature * len(learner.layers),
        old=learner.old,
        every=learner.interval(LR),
    )
    reused = 0
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
        reused += len(learner.scalings)
        learner.end_task(loader)
        slow.end_task(loader)
        for found, layer in zip(weights(learner).values(), slow.layers, strict=True):
            assert torch.allclose(found, layer.weight, atol=1e-8)
        for old in range(task + 1):
            x = torch.cat([x for x, _ in loader_of(old)])
            assert torch.allclose(logits(learner, old, x), slow.logits(old, x), atol=1e-8)
    assert bool(reused) == bool(selected)


def trained(learner: Any, tasks: int = 2) -> Any:
    for task in range(tasks):
        learn(learner, CASE.loader(task, dtype=next(learner.model.parameters()).dtype))
    return learner


def test_with_nothing_to_protect_it_is_fine_tuning() -> None:
    """lam without limit: P is the identity."""
    soft = trained(SoftCUBER(CASE.model(dtype=torch.float64), selected=0, old=0.0, lam=1e12))
    plain = trained(FineTune(CASE.model(dtype=torch.float64)))
    for one, other in zip(soft.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-9)


def test_with_everything_to_protect_it_is_gpm() -> None:
    """lam towards 0, no old gradients: P is the projector off all inputs, GPM's with a threshold of 1."""
    soft = trained(SoftCUBER(CASE.model(dtype=torch.float64), selected=0, old=0.0, lam=1e-6, samples=1000))
    hard = trained(GPM(CASE.model(dtype=torch.float64), threshold=1.0, samples=1000))
    moved, still = 0.0, 0.0
    for one, other in zip(soft.model.parameters(), hard.model.parameters(), strict=True):
        still = max(still, float((one - other).norm() / other.norm()))
    fresh = CASE.model(dtype=torch.float64)
    for one, other in zip(soft.model.parameters(), fresh.parameters(), strict=True):
        moved = max(moved, float((one - other).norm() / other.norm()))
    assert still < 0.05 < moved


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, lambda p, lr: torch.optim.SGD(p, lr, 0.9)])
def test_what_other_optimizers_change_is_filtered(make: Any) -> None:
    """With lam towards 0, no optimizer moves the weight along inputs of the old task."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)).double()
    learner = SoftCUBER(model, selected=0, old=0.0, lam=1e-6)
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))
    x[:, 3:] = 0
    learn(learner, [(x, y)])
    before = model[0].weight.detach().clone()
    other = torch.randn(8, 6, dtype=torch.float64)
    learner.begin_task([(other, y)], loss_fn)
    optimizer = learner.wrap(make(learner.parameters(), lr=0.01))
    for _ in range(5):
        optimizer.zero_grad()
        loss_fn(model(other), y).backward()
        optimizer.step()
    change = model[0].weight.detach() - before
    assert change[:, :3].abs().max() < 1e-5 < 1e-3 < change[:, 3:].abs().max()


def test_old_losses_fall_where_the_model_says_so() -> None:
    """A new task without a gradient of its own: the old loss goes down, by about what the model predicts."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3, bias=False).double()
    learner = SoftCUBER(model, selected=0, curvature=0.2)
    x, y = torch.randn(40, 6, dtype=torch.float64), torch.randint(3, (40,))
    learn(learner, [(x, y)], epochs=1)
    before = float(loss_fn(model(x), y))
    learner.begin_task([(x, y)], lambda output, target: output.sum() * 0)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.05))
    for _ in range(3):
        optimizer.zero_grad()
        (model(x).sum() * 0).backward()
        optimizer.step()
    (layer,), (quadratic,) = learner.layers.values(), learner.models.values()
    predicted = float(quadratic.value(learner.moved(layer)))
    happened = float(loss_fn(model(x), y)) - before
    assert predicted < 0
    assert happened == pytest.approx(predicted, rel=0.3)


def test_a_closure_sees_the_old_losses_in_its_value() -> None:
    learner = SoftCUBER(CASE.model(dtype=torch.float64), selected=0)
    trained(learner, tasks=1)
    loader = CASE.loader(1, dtype=torch.float64)
    learner.begin_task(loader, loss_fn)
    optimizer = learner.wrap(torch.optim.LBFGS(learner.parameters(), lr=0.1, max_iter=4))
    x, y = loader[0]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(learner.model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    value = learner.added_loss(optimizer)
    assert value is not None
    assert float(value) != 0


def loss_of(learner: Any, task: int, loader: Any) -> float:
    with torch.no_grad(), learner.as_task(task) as model:
        return float(sum(loss_fn(model(x), y) for x, y in loader) / len(loader))


def test_a_layer_that_a_task_did_not_train_is_held_for_it_all_the_same() -> None:
    learner = SoftCUBER(CASE.model(), selected=0)
    learn(learner, CASE.loader(0))
    layer = next(iter(learner.layers.values()))
    before = float(learner.models[layer.name].curvatures.sum())
    for parameter in layer.parameters:
        parameter.requires_grad_(False)
    learn(learner, CASE.loader(1))
    for parameter in layer.parameters:
        parameter.requires_grad_(True)
    assert float(learner.models[layer.name].curvatures.sum()) > 1.5 * before
    kept = loss_of(learner, 1, CASE.loader(1))
    learn(learner, CASE.loader(2))
    assert loss_of(learner, 1, CASE.loader(1)) < 2 * kept + 0.2


def test_every_optimizer_looks_at_its_own_layers_every_few_steps() -> None:
    """Steps are counted by layer: of two optimizers, the second would always see odd numbers."""
    learner = trained(SoftCUBER(CASE.model(), selected=0), tasks=1)
    loader = CASE.loader(1)
    learner.begin_task(loader, loss_fn)
    first = next(iter(learner.layers.values())).parameters
    others = [parameter for parameter in learner.parameters() if all(parameter is not one for one in first)]
    optimizers = [learner.wrap(torch.optim.SGD(some, lr=0.1)) for some in (first, others)]
    for step in range(learner.every + 1):
        x, y = loader[step % len(loader)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_fn(learner.model(x), y).backward()
        moved = {name: learner.moved(layer) for name, layer in learner.layers.items()}
        before = {name: learner.old_gradients[name].filtered_at(moved[name]) for name in moved}
        for optimizer in optimizers:
            optimizer.step()
    assert learner.pulls.keys() == learner.layers.keys()
    for name, pull in learner.pulls.items():
        assert torch.allclose(pull, before[name], atol=1e-6), name
    learner.end_task(loader)


def test_moments_are_exact_whatever_the_bases_are_made_of() -> None:
    exact, sketched = (
        trained(SoftCUBER(CASE.model(), selected=0, sketch=sketch, sketch_rank=1, threshold=0.1), tasks=1)
        for sketch in ("never", "always")
    )
    for one, other in zip(exact.models.values(), sketched.models.values(), strict=True):
        assert torch.allclose(one.curvatures, other.curvatures)


def test_a_restored_snapshot_takes_the_old_gradient_back_too() -> None:
    """What was computed along the way that is given up is not used after it."""
    learner = trained(SoftCUBER(CASE.model()), tasks=1)
    loader = CASE.loader(1)
    learner.begin_task(loader, loss_fn)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
    snapshot = learner.snapshot()

    def step() -> list[torch.Tensor]:
        x, y = loader[0]
        optimizer.zero_grad()
        loss_fn(learner.model(x), y).backward()
        optimizer.step()
        return [parameter.detach().clone() for parameter in learner.model.parameters()]

    first = step()
    for _ in range(learner.every + 2):
        step()
    snapshot.restore()
    assert all(torch.equal(one, other) for one, other in zip(first, step(), strict=True))


def test_state_goes_on_in_the_middle_of_a_task_with_the_same_bits() -> None:
    learner = trained(SoftCUBER(CASE.model()))
    loader = CASE.loader(2)
    learner.begin_task(loader, loss_fn)
    twin = SoftCUBER(copy.deepcopy(learner.model))
    twin.load_state_dict(learner.state_dict())
    twin.resume_task(loss_fn)
    for each in (learner, twin):
        optimizer = each.wrap(torch.optim.SGD(each.parameters(), lr=0.1))
        for x, y in loader:
            optimizer.zero_grad()
            loss_fn(each.model(x), y).backward()
            optimizer.step()
        each.end_task(loader)
    assert same_bits(learner.model, twin.model)
    assert learner.memory_bytes()["moments"] > 0
