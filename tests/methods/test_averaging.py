"""An average of the weights along the way: what it is, when it is shown, and that it protects as much."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, GPM, TRGP, CuberError, CuberWarning, FineTune, LoRA, SoftCUBER, Stream, Task
from cuber import learn as run
from cuber.core.settings import settings_of
from tests.loops import OPTIMIZERS, learn, logits, loss_fn, sgd, train
from tests.models import CASES, Case, cases

METHODS: dict[type, dict[str, Any]] = {
    GPM: {"threshold": 0.8},
    TRGP: {"threshold": 0.8, "eps1": 0.1},
    CUBER: {"threshold": 0.8, "eps1": 0.1, "eps2": -0.2, "lam": 0.1},
    SoftCUBER: {"threshold": 0.8, "eps1": 0.1},
}
methods = pytest.mark.parametrize("kind", METHODS)
CASE = CASES["mlp"]


def learner_of(kind: type, case: Case = CASE, ema: float = 1.0) -> Any:
    return kind(case.model(dtype=torch.float64), ema=ema, **METHODS[kind])


def loader_of(task: int, case: Case = CASE) -> Any:
    return case.loader(task, 16, 4, torch.float64)


def trained_values(learner: Any) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in learner.named_parameters()}


def mean_of(way: list[Tensor], window: float) -> Tensor:
    """The exponential mean with its weights written out: each step's share times what later steps leave of it."""
    shares = [1 / min(step, window) for step in range(1, len(way) + 1)]
    total = torch.zeros_like(way[0])
    for step, value in enumerate(way):
        left = shares[step]
        for later in shares[step + 1 :]:
            left *= 1 - later
        total += left * value
    return total


@methods
@pytest.mark.parametrize("ema", [0.1, 0.5, 1.0, 100.0])
def test_a_task_keeps_the_mean_of_its_way(kind: type, ema: float) -> None:
    learner = learner_of(kind, ema=ema)
    for task in range(3):
        loader, way = loader_of(task), []
        learner.begin_task(loader, loss_fn)
        optimizer = learner.wrap(sgd(learner.parameters()))
        train(learner, optimizer, loader, epochs=3, after_step=lambda way=way: way.append(trained_values(learner)))
        window, live = max(1.0, ema * len(loader)), trained_values(learner)
        with learner.as_task(task):
            shown = trained_values(learner)
        for name, value in shown.items():
            assert torch.allclose(value, mean_of([at[name] for at in way], window), atol=1e-12), name
        assert all(torch.equal(value, live[name]) for name, value in trained_values(learner).items())
        matrices = {name: scaling.matrix for name, scaling in learner.scalings.items()}
        learner.end_task(loader)
        for name, parameter in learner.model.named_parameters():
            assert torch.allclose(parameter, shown.get(name, parameter), atol=1e-9), name
        for name, matrix in matrices.items():
            assert any(torch.equal(matrix, value) for value in shown.values()), name
            assert torch.equal(learner.memory[name].scalings[task].matrix, matrix), name


@methods
def test_training_does_not_see_the_average(kind: type) -> None:
    """Until its first task ends, a learner walks the same way with and without it, whatever is shown between."""
    averaging, plain = learner_of(kind), learner_of(kind, ema=0.0)
    plain.model.load_state_dict(averaging.model.state_dict())
    for learner in (averaging, plain):
        learner.begin_task(loader_of(0), loss_fn)
        optimizer = learner.wrap(sgd(learner.parameters()))
        for _ in range(2):
            train(learner, optimizer, loader_of(0))
            with learner.as_task(0), learner.as_task(None):  # nested views show the same weights
                learner.snapshot()
    for name, value in trained_values(plain).items():
        assert torch.equal(trained_values(averaging)[name], value), name


@pytest.mark.parametrize("backend", ["fast", "plain"])
def test_without_an_average_a_view_does_not_change_weights(backend: str) -> None:
    learner = GPM(CASE.model(), backend=backend)
    learn(learner, CASE.loader(0, 16, 4))
    learner.begin_task(CASE.loader(1, 16, 4), loss_fn)
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(1, 16, 4), epochs=10, end_epochs=False)
    with torch.no_grad():
        for layer in learner.layers.values():
            layer.set_matrix(layer.matrix() * (1 + 1e-4))  # as rounding errors of many steps do
    before = trained_values(learner)
    with learner.as_task(0), learner.as_task(None):
        pass
    assert all(torch.equal(value, before[name]) for name, value in trained_values(learner).items())


@pytest.mark.parametrize("case", cases())
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_the_average_is_where_weights_may_be(case: Case, optimizer: str) -> None:
    """Along protected directions each weight of the way is w', and so is their mean: old answers stay."""
    learner = GPM(case.model(dtype=torch.float64), ema=0.5, threshold=1.0)
    learn(learner, loader_of(0, case), OPTIMIZERS[optimizer])
    x = torch.cat([x for x, _ in loader_of(0, case)])
    before = logits(learner, 0, x)
    loader = loader_of(1, case)
    learner.begin_task(loader, loss_fn)
    train(learner, learner.wrap(OPTIMIZERS[optimizer](learner.parameters())), loader, epochs=2)
    assert learner.averages
    for name in learner.layers:
        with learner.as_task(1):
            moved = learner.displacement(name)[:, learner.memory[name].protected_columns()]
        assert float(moved.norm()) < 1e-9, name
    learner.end_task(loader)
    assert torch.allclose(logits(learner, 0, x), before, atol=1e-6)


def test_running_statistics_belong_to_the_average() -> None:
    case, way = CASES["residual block"], []
    learner, loader = learner_of(GPM, case), loader_of(0, case)
    learner.begin_task(loader, loss_fn)
    mean = learner.model.norm1.running_mean
    train(learner, learner.wrap(sgd(learner.parameters())), loader, after_step=lambda: way.append(mean.clone()))
    learner.end_task(loader)
    assert torch.allclose(mean, mean_of(way, len(loader)))


def test_of_several_optimizers_the_last_completes_a_step() -> None:
    """Between the steps of two optimizers, weight and bias of one layer do not fit each other."""
    learner, loader = learner_of(GPM, ema=0.5), loader_of(1)
    learn(learner, loader_of(0))
    learner.begin_task(loader, loss_fn)
    parts = [[p for p in learner.parameters() if (p.dim() > 1) == matrix] for matrix in (True, False)]
    optimizers = [learner.wrap(sgd(part)) for part in parts]
    for x, y in loader:
        learner.model.zero_grad()
        loss_fn(learner.model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert learner.averaged_steps == len(loader)
    with learner.as_task(1):
        for name, memory in learner.memory.items():
            assert float(learner.displacement(name)[:, memory.protected_columns()].norm()) < 1e-9, name


@methods
def test_it_resumes_with_the_same_bits(kind: type) -> None:
    case = CASES["residual block"]
    learner = learner_of(kind, case)
    learn(learner, loader_of(0, case), epochs=2)
    learner.begin_task(loader_of(1, case), loss_fn)
    train(learner, learner.wrap(sgd(learner.parameters())), loader_of(1, case))
    twin = learner_of(kind, case)
    twin.model.load_state_dict(copy.deepcopy(learner.model.state_dict()))
    twin.load_state_dict(learner.state_dict())
    twin.resume_task(loss_fn)
    for one in (learner, twin):
        torch.manual_seed(0)
        train(one, one.wrap(sgd(one.parameters())), loader_of(1, case))
        one.end_task(loader_of(1, case))
    for key, value in learner.model.state_dict().items():
        assert torch.equal(value, twin.model.state_dict()[key]), key


@methods
def test_a_snapshot_copies_what_would_be_kept(kind: type) -> None:
    learner, loader = learner_of(kind), loader_of(0)
    learner.begin_task(loader, loss_fn)
    optimizer = learner.wrap(sgd(learner.parameters()))
    train(learner, optimizer, loader)
    best = learner.snapshot()
    with learner.as_task(0):
        shown = trained_values(learner)
    train(learner, optimizer, loader)
    best.restore()
    assert all(torch.equal(value, shown[name]) for name, value in trained_values(learner).items())
    learner.end_task(loader)  # and what came after the best weights is not in what is kept
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(parameter, shown.get(name, parameter)), name


def test_early_stopping_judges_and_keeps_the_average() -> None:
    """The validation loss of the epoch that is kept is that of the model after the task."""
    torch.manual_seed(0)
    x, y = torch.randn(60, 8), torch.randint(3, (60,))
    stream = Stream("noise", [Task("a", (x[:30], y[:30]), (x[30:], y[30:]), (x[30:], y[30:]), classes=3)])
    learner = GPM(nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 3)), ema=2.0)
    result = run(learner, stream, epochs=30, lr=0.3, batch_size=5, patience=2)
    (kept,) = (epoch for epoch in result.history[0] if epoch.kept)
    with learner.as_task(0) as model, torch.no_grad():
        model.eval()
        loss = float(nn.functional.cross_entropy(model(x[30:]), y[30:]))
    assert kept.validation_loss == pytest.approx(loss, abs=1e-6)
    assert kept.validation_loss == min(epoch.validation_loss for epoch in result.history[0])


def test_it_needs_the_length_of_an_epoch() -> None:
    class Endless:
        def __iter__(self) -> Any:
            return iter(loader_of(0))

    learner = learner_of(GPM)
    with pytest.raises(CuberError, match=r"ema is a number of epochs.*steps="):
        learner.begin_task(Endless(), loss_fn)
    learner.begin_task(Endless(), loss_fn, steps=4)


def test_half_precision_weights_do_not_round_the_average_away() -> None:
    model = nn.Linear(4, 2, bias=False).bfloat16()
    learner = GPM(model, ema=1.0)
    loader = [(torch.eye(4).bfloat16(), torch.tensor([0, 1, 0, 1]))]
    learner.begin_task(loader, loss_fn, steps=100)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.0))
    train(learner, optimizer, loader)
    with torch.no_grad():
        model.weight += 1
    train(learner, optimizer, loader, epochs=500)
    last = model.weight.detach().float()
    with learner.as_task(0):
        assert torch.allclose(model.weight.detach().float(), last, atol=0.05)


def test_only_methods_whose_mean_is_admissible_have_it() -> None:
    """The mean of two products of factors is not the product of their means: LoRA has no ``ema``."""
    assert {kind for kind in (*METHODS, LoRA, FineTune) if "ema" in settings_of(kind)} == set(METHODS)


def test_a_state_of_between_tasks_has_no_average_of_the_task_that_was_left() -> None:
    learner = learner_of(GPM)
    learn(learner, loader_of(0))
    weights, state = copy.deepcopy(learner.model.state_dict()), copy.deepcopy(learner.state_dict())
    x = loader_of(0)[0][0]
    expected = logits(learner, 0, x)
    learner.begin_task(loader_of(1), loss_fn)
    train(learner, learner.wrap(sgd(learner.parameters())), loader_of(1))
    learner.model.load_state_dict(weights)
    learner.load_state_dict(state)
    assert torch.equal(logits(learner, 0, x), expected)
    assert torch.equal(learner.export(0)(x), expected)


def test_a_learner_without_an_average_does_not_keep_that_of_a_loaded_state() -> None:
    averaging, learner = learner_of(GPM), learner_of(GPM, ema=0.0)
    averaging.begin_task(loader_of(0), loss_fn)
    train(averaging, averaging.wrap(sgd(averaging.parameters())), loader_of(0), end_epochs=False)
    learner.model.load_state_dict(averaging.model.state_dict())
    with pytest.warns(CuberWarning, match="ema=1.0"):
        learner.load_state_dict(averaging.state_dict())
    learner.resume_task(loss_fn)
    train(learner, learner.wrap(sgd(learner.parameters())), loader_of(0), epochs=3)
    last = trained_values(learner)
    learner.end_task(loader_of(0))
    assert all(torch.equal(value, last[name]) for name, value in trained_values(learner).items())
