"""EWC goes where the oracle with all its anchors goes, and where its limits say."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import EWC, CuberError, FineTune, MultiHead
from cuber.methods import ewc
from tests.loops import OPTIMIZERS, learn, logits, loss_fn, same_bits
from tests.methods.test_resume import momentum
from tests.models import CASES, Case, cases
from tests.oracles.ewc import SlowEWC, draw

LAM, LR, EPOCHS, TASKS = 60.0, 0.05, 2, 3
CASE = CASES["mlp"]


def names_held(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters() if not name.startswith("heads.")]


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).norm() <= 1e-9 * theirs.norm() + 1e-13)


def select(model: nn.Module, task: int) -> None:
    if isinstance(model, MultiHead):
        model.select_task(task)


def both(case: Case, seed: int, slow_settings: dict[str, Any], **settings: Any) -> tuple[EWC, SlowEWC]:
    """Three tasks learned by us and by the oracle, compared at every step: losses, gradients, weights."""
    model = case.model(seed, torch.float64)
    settings = {"norm_parameters": "shared", **settings}
    own = "norm" if settings["norm_parameters"] == "task" else "nothing"  # which nothing holds back
    names = [name for name in names_held(model) if not name.startswith(own)]
    slow = SlowEWC(copy.deepcopy(model), names, LAM, LR, **slow_settings)
    learner = EWC(model, lam=LAM, **settings)
    for task in range(TASKS):
        loader = case.loader(task, dtype=torch.float64)
        select(slow.model, task)
        learner.begin_task(loader, loss_fn)
        for buffer, ours in zip(slow.model.buffers(), model.buffers(), strict=True):
            buffer.copy_(ours)  # a new task's normalization statistics are every method's business
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=LR))
        for step, (x, y) in enumerate(loader * EPOCHS):

            def closure(x: Tensor = x, y: Tensor = y, optimizer: Any = optimizer) -> Tensor:
                optimizer.zero_grad()
                loss = loss_fn(model(x), y)
                loss.backward()
                return loss.detach()

            torch.manual_seed(step)  # dropout
            total = float(optimizer.step(closure))  # type: ignore[arg-type]
            torch.manual_seed(step)
            expected, gradients = slow.step((x, y))
            assert total == pytest.approx(expected, rel=1e-10)
            ours = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            assert ours.keys() == gradients.keys()
            assert all(close(ours[name], gradients[name]) for name in gradients)
        learner.end_task(loader)
        slow.end_task(loader)
        for (name, parameter), theirs in zip(model.named_parameters(), slow.model.parameters(), strict=True):
            assert close(parameter.detach(), theirs.detach()), name
    return learner, slow


@pytest.mark.parametrize("case", cases(but=frozenset({"recurrent"})))  # one sample at a time
def test_every_model_goes_where_the_oracle_goes(case: Case) -> None:
    learner, slow = both(case, 0, {})
    assert float(slow.penalty().detach()) > 1e-4, "there is no penalty, so nothing is shown"
    assert learner.constant > 0


@pytest.mark.parametrize(
    ("name", "gamma", "seed"),
    [("mlp", 1.0, 1), ("mlp", 0.4, 2), ("residual block", 0.4, 1), ("many heads", 1.0, 2), ("many heads", 0.4, 1)],
)
def test_the_online_form_goes_where_the_oracle_goes(name: str, gamma: float, seed: int) -> None:
    _, slow = both(CASES[name], seed, {"online": True, "gamma": gamma}, anchors="last", gamma=gamma)
    assert len(slow.memory) == 1


def test_with_norms_of_each_tasks_own_it_goes_where_the_oracle_goes() -> None:
    learner, _ = both(CASES["residual block"], 0, {}, norm_parameters="task")
    assert not any(name.startswith("norm") for name in learner.importance)


@pytest.mark.parametrize("name", ["mlp", "cnn", "many heads"])
def test_with_labels_drawn_from_the_model_it_goes_where_the_oracle_goes(name: str) -> None:
    both(CASES[name], 3, {"labels": draw}, labels="model")


# Labels


def finished(learner: EWC, loader: Any) -> EWC:
    """A task without a step, so that the weights are known."""
    learner.begin_task(loader, loss_fn)
    learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
    learner.end_task(loader)
    return learner


def test_labels_of_the_model_come_as_often_as_it_says() -> None:
    torch.manual_seed(1)
    model = nn.Linear(2, 3).double()
    with torch.no_grad():
        model.weight.mul_(2)
    x = torch.tensor([[1.0, 0.5], [-1.0, 2.0]]).double()
    expected = torch.zeros(3, 2).double()
    for row in x:
        probabilities = model(row).detach().softmax(0)
        for label in range(3):
            (gradient,) = torch.autograd.grad(loss_fn(model(row[None]), torch.tensor([label])), [model.weight])
            expected += float(probabilities[label]) * gradient.square() / 2
    copies = 10000
    loader = [(x.repeat(copies, 1), torch.zeros(2 * copies, dtype=torch.long))]
    learner = finished(EWC(model, labels="model", samples=2 * copies), loader)
    assert torch.allclose(learner.importance["weight"], expected, rtol=0.03)


def test_labels_are_drawn_alike_however_they_are_batched_and_differ_from_task_to_task() -> None:
    drawn = []
    for batch_size in (5, 24):
        learner = EWC(CASE.model(dtype=torch.float64), labels="model")
        for task in range(2):
            learner.tasks = task
            batches = learner.draw_labels(CASE.loader(0, batch_size=batch_size, dtype=torch.float64))
            drawn.append(torch.cat([y for _, y in batches]))
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[1], drawn[3])
    assert not torch.equal(drawn[0], drawn[1])


def test_labels_are_drawn_for_every_position_of_an_answer_that_has_several() -> None:
    model = nn.Conv1d(2, 4, 1)
    x, y = torch.randn(6, 2, 5), torch.randint(4, (6, 5))
    learner = finished(EWC(model, labels="model"), [(x, y)])
    ((_, drawn),) = learner.draw_labels([(x, y)])
    assert drawn.shape == y.shape
    assert drawn.dtype == y.dtype
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, 0.0, 50.0, 0.0]))  # type: ignore[union-attr]
    ((_, drawn),) = learner.draw_labels([(x, y)])
    assert drawn.eq(2).all()


def test_labels_of_the_model_are_refused_where_there_are_none() -> None:
    model = CASE.model()
    with pytest.raises(CuberError, match="needs the model's outputs, which forward= hides"):
        EWC(model, labels="model", forward=lambda model, batch: loss_fn(model(batch[0]), batch[1]))
    learner = EWC(model, labels="model")
    x = CASE.inputs(0, 6)
    with pytest.raises(CuberError, match=r"draws class labels, .*\[6, 3\] have targets of shape \[6, 3\]"):
        learner.begin_task([(x, torch.rand(6, 3))], nn.MSELoss())
    learner.labels = "true"
    learner.begin_task([(x, torch.rand(6, 3))], nn.MSELoss())


# Limits


def after(kind: Any, case: Case = CASE, make: Any = momentum, tasks: int = 3, **settings: Any) -> Any:
    learner = kind(case.model(), **settings)
    torch.manual_seed(7)
    for task in range(tasks):
        learn(learner, case.loader(task), make, epochs=2)
    return learner


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_without_a_coefficient_it_is_finetune_to_the_bit(make: Any) -> None:
    assert same_bits(after(EWC, make=make, lam=0).model, after(FineTune, make=make).model)
    assert not same_bits(after(EWC, make=make, lam=1.0).model, after(FineTune, make=make).model)


@pytest.mark.parametrize("name", ["mlp", "transformer", "residual block", "many heads"])
def test_without_a_fisher_it_is_finetune_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = after(EWC, CASES[name])
    zero = lambda model, *_: {n: torch.zeros_like(p) for n, p in model.named_parameters()}  # noqa: E731
    monkeypatch.setattr(ewc, "fisher_diagonal", zero)
    loose = after(EWC, CASES[name])
    assert same_bits(loose.model, after(FineTune, CASES[name]).model)
    assert not same_bits(held.model, loose.model), "the Fisher does nothing, so nothing is shown"
    assert loose.importance == {}


def test_with_one_old_task_the_online_form_is_the_other() -> None:
    each, last = (after(EWC, tasks=2, anchors=anchors, gamma=0.5) for anchors in ("each", "last"))
    assert same_bits(each.model, last.model)
    each, last = (after(EWC, tasks=3, anchors=anchors, gamma=0.5) for anchors in ("each", "last"))
    assert not same_bits(each.model, last.model)


def test_it_forgets_less_the_harder_old_tasks_hold_on() -> None:
    x, y = CASE.inputs(0, 24), torch.arange(24) % 3
    old, new = [(x, y)], [(x, (y + 1) % 3)]  # the same questions, and other answers

    def forgotten(kind: Any, **settings: Any) -> float:
        learner = kind(CASE.model(), **settings)
        losses = []
        for loader in (old, new):
            learn(learner, loader, momentum, epochs=40)
            losses.append(float(loss_fn(logits(learner, 0, x), y)))
        return losses[1] - losses[0]

    none, soft, hard = forgotten(FineTune), forgotten(EWC, lam=10.0), forgotten(EWC, lam=100.0)
    assert none > 1
    assert soft < 0.8 * none
    assert hard < 0.3 * none


def test_lbfgs_finds_the_minimum_of_loss_and_penalty() -> None:
    """On a linear model with squared errors, that minimum is a system of equations."""
    x, y = torch.randn(2, 30, 4).double(), torch.randn(2, 30, 1).double()
    model = nn.Linear(4, 1, bias=False).double()
    learner = EWC(model, lam=3.0)
    loss = nn.MSELoss()
    for task in range(2):
        loader = [(x[task], y[task])]
        learner.begin_task(loader, loss)
        optimizer = learner.wrap(
            torch.optim.LBFGS(learner.parameters(), max_iter=100, tolerance_grad=1e-12, line_search_fn="strong_wolfe")
        )

        def closure(x: Tensor = x[task], y: Tensor = y[task], optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            return value

        optimizer.step(closure)
        if task == 0:
            learner.end_task(loader)
            anchor = model.weight.detach()[0].clone()
    slopes = 2 * (x[0] @ anchor[:, None] - y[0]) * x[0]
    importance = slopes.square().mean(0)
    assert torch.allclose(learner.importance["weight"][0], importance)
    quadratic = 2 * x[1].T @ x[1] / 30 + 3.0 * importance.diag()
    minimum = torch.linalg.solve(quadratic, 2 * x[1].T @ y[1][:, 0] / 30 + 3.0 * importance * anchor)
    assert torch.allclose(model.weight.detach()[0], minimum, atol=1e-6)
