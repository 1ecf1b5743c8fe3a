"""Any torch optimizer, used in any way that torch allows, is the user's own object all along."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.testing import assert_close

from cuber import AGEM, CUBER, ER, EWC, GPM, HAT, TRGP, CuberError, FineTune, SoftCUBER
from cuber.methods import METHODS
from tests.loops import OPTIMIZERS, MakeOptimizer, Watch, detach, learn, loss_fn, same_bits, sgd, train, weights
from tests.models import CASES

CASE = CASES["mlp"]


def in_second_task(kind: type = CUBER, **settings: Any) -> Any:
    learner = kind(CASE.model(), threshold=0.8, **settings)
    learn(learner, CASE.loader(0, samples=4))
    learner.begin_task(CASE.loader(1), loss_fn)
    return learner


def test_wrap_returns_the_very_optimizer_it_was_given() -> None:
    learner = in_second_task()
    optimizer = sgd(learner.parameters())
    assert learner.wrap(optimizer) is optimizer
    assert type(optimizer) is torch.optim.SGD


def test_wrapping_twice_is_wrapping_once() -> None:
    learners = [in_second_task(eps1=0.0, eps2=-1.0, lam=0.5) for _ in range(2)]
    for learner, times in zip(learners, (1, 3), strict=True):
        optimizer = sgd(learner.parameters())
        for _ in range(times):
            learner.wrap(optimizer)
        assert len(optimizer._optimizer_step_pre_hooks) == len(optimizer._optimizer_step_post_hooks) == 1
        train(learner, optimizer, CASE.loader(1))
    assert same_bits(learners[0].model, learners[1].model)


@pytest.mark.parametrize("kind", [FineTune, GPM, TRGP, CUBER])
def test_after_the_task_an_optimizer_has_no_hooks_left(kind: type) -> None:
    learner = kind(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    optimizer = learner.wrap(sgd(learner.parameters()))
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert len(optimizer._optimizer_step_post_hooks) == (kind is not FineTune)  # which does nothing after a step
    train(learner, optimizer, CASE.loader(0))
    learner.end_task(CASE.loader(0))
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_detaching_in_the_middle_of_a_task_takes_the_hooks_along() -> None:
    learner = in_second_task()
    optimizer = learner.wrap(sgd(learner.parameters()))
    detach(learner)
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: StepLR(optimizer, 2, 0.5),
        lambda optimizer: CosineAnnealingLR(optimizer, 5),
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=20),
    ],
    ids=["StepLR", "CosineAnnealingLR", "OneCycleLR"],
)
@pytest.mark.parametrize("first", ["wrap", "schedule"])
@pytest.mark.filterwarnings("error:.*lr_scheduler:UserWarning")
def test_learning_rate_schedules_work_put_on_before_or_after(schedule: Any, first: str) -> None:
    learner = in_second_task(GPM)
    watch = Watch.over(learner)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.1, momentum=0.9)
    if first == "wrap":
        scheduler = schedule(learner.wrap(optimizer))
    else:
        scheduler = schedule(optimizer)
        learner.wrap(optimizer)
    rates = set()

    def after_step() -> None:
        watch.held()
        scheduler.step()
        rates.add(optimizer.param_groups[0]["lr"])

    train(learner, optimizer, CASE.loader(1), epochs=2, after_step=after_step)
    assert len(rates) > 1


@pytest.mark.needs_dtype(torch.bfloat16)
def test_a_plateau_schedule_and_a_gradient_scaler_work() -> None:
    learner = in_second_task(GPM)
    watch = Watch.over(learner)
    optimizer = learner.wrap(torch.optim.Adam(learner.parameters(), lr=0.01))
    scheduler, scaler = ReduceLROnPlateau(optimizer, patience=0), torch.amp.GradScaler("cpu")
    for x, y in CASE.loader(1):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_fn(learner.model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step(1.0)
        watch.held()
    assert watch.moved() > 1e-3


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_step_with_a_closure_is_as_safe_as_one_without(make: MakeOptimizer, by_name: bool) -> None:
    learner = in_second_task(TRGP, eps1=0.1)
    watch = Watch.over(learner)
    optimizer = learner.wrap(make(learner.parameters()))
    for x, y in CASE.loader(1):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = loss_fn(learner.model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert torch.isfinite(loss.detach())
        watch.held()
    assert watch.moved() > 1e-3


def test_with_and_without_a_closure_the_path_is_the_same() -> None:
    learners = [in_second_task(eps1=0.0, eps2=-1.0, lam=0.5) for _ in range(2)]
    for learner, with_closure in zip(learners, (True, False), strict=True):
        optimizer = learner.wrap(torch.optim.Adam(learner.parameters(), lr=0.01))
        for x, y in CASE.loader(1):

            def closure(learner: Any = learner, optimizer: Any = optimizer, x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = loss_fn(learner.model(x), y)
                loss.backward()
                return loss

            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    assert same_bits(learners[0].model, learners[1].model)


def test_a_closure_may_return_nothing() -> None:
    learner = in_second_task(eps1=0.0, eps2=-1.0, lam=0.5)
    optimizer = learner.wrap(sgd(learner.parameters()))
    (x, y), *_ = CASE.loader(1)

    def closure() -> None:
        optimizer.zero_grad()
        loss_fn(learner.model(x), y).backward()

    assert optimizer.step(closure) is None  # type: ignore[arg-type, func-returns-value]


@pytest.mark.parametrize("kind", [TRGP, CUBER])
def test_an_optimizer_without_the_scalings_is_refused_and_the_next_one_taken(kind: type) -> None:
    learner = in_second_task(kind, eps1=0.0)
    lacking = sgd(learner.model.parameters())
    with pytest.raises(CuberError, match=r"lacks 3 parameters.*first 'layers\.0\.scaling\.0'.*learner\.parameters\(\)"):
        learner.wrap(lacking)
    assert not lacking._optimizer_step_pre_hooks
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(1))
    learner.end_task(CASE.loader(1))


@pytest.mark.parametrize("thing", [None, "SGD", nn.Linear(2, 2)], ids=["nothing", "a name", "a module"])
def test_what_is_no_optimizer_is_refused(thing: Any) -> None:
    learner = in_second_task()
    with pytest.raises(CuberError, match="torch optimizer"):
        learner.wrap(thing)


def test_an_optimizer_of_another_model_is_refused() -> None:
    learner = in_second_task(GPM)
    with pytest.raises(CuberError):
        learner.wrap(sgd(CASE.model().parameters()))


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_one_optimizer_may_serve_all_tasks_of_a_method_without_scalings(make: MakeOptimizer) -> None:
    learner = GPM(CASE.model(), threshold=0.5)
    optimizer = make(learner.parameters())
    for task in range(3):
        loader = CASE.loader(task, samples=8)
        learner.begin_task(loader, loss_fn)
        watch = Watch.over(learner)
        train(learner, learner.wrap(optimizer), loader, after_step=watch.held)
        assert watch.moved() > 1e-4
        learner.end_task(loader)


def test_scalings_are_trained_by_the_same_optimizer() -> None:
    learner = in_second_task(TRGP, eps1=0.0)
    names = [name for name, _ in learner.named_parameters()]
    assert [name for name in names if ".scaling." in name] == [f"layers.{layer}.scaling.0" for layer in range(3)]
    scalings = [p for name, p in learner.named_parameters() if ".scaling." in name]
    assert not any(p.any() for p in scalings)
    before = weights(learner)
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(1))
    assert all(p.abs().max() > 1e-4 for p in scalings)
    learner.end_task(CASE.loader(1))
    assert not any(".scaling." in name for name, _ in learner.named_parameters())
    assert before.keys() == weights(learner).keys()


@pytest.mark.parametrize("kind", [GPM, CUBER, EWC, HAT, ER, AGEM], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_changes_nothing_also_where_the_step_itself_unscales(kind: type, fused: bool) -> None:
    """Fused steps get scaled gradients: what a method adds to them must not be a thousand times too small."""
    settings: dict[str, Any] = {"eps1": 0.0, "eps2": -1.0, "lam": 0.5} if kind is CUBER else {}
    models = []
    for scaler in (torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu", init_scale=1024.0)):
        torch.manual_seed(0)
        learner = kind(CASE.model(), **settings)
        learn(learner, CASE.loader(0, samples=4))
        learner.begin_task(CASE.loader(1), loss_fn)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1, fused=fused))
        for x, y in CASE.loader(1):
            optimizer.zero_grad()
            scaler.scale(loss_fn(learner.model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
        models.append(learner.model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert_close(one, other)


def test_a_fused_step_over_gradients_that_are_not_finite_is_none() -> None:
    learner = in_second_task(eps1=0.0, eps2=-1.0, lam=0.5)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1, fused=True))
    scaler, before = torch.amp.GradScaler("cpu", init_scale=1024.0), weights(learner)
    for x, y in CASE.loader(1):
        optimizer.zero_grad()
        scaler.scale(loss_fn(learner.model(x), y) * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
    assert all(map(torch.equal, weights(learner).values(), before.values()))


def learnt_by(sign: int, kind: type, closed: bool) -> tuple[nn.Module, list[float]]:
    """Two tasks, learnt down the loss or up minus the loss; and the losses that steps with a closure tell."""
    torch.manual_seed(0)
    settings: dict[type, Any] = {CUBER: {"eps1": 0.0, "eps2": -1.0, "lam": 0.5}, SoftCUBER: {"every": 1}}
    learner: Any = kind(CASE.model(), **settings.get(kind, {}))
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sign * loss_fn(learner.model(batch[0]), batch[1])
        loss.backward()
        return loss.detach()

    for task in range(2):
        loader = CASE.loader(task, samples=4 if task == 0 else 64)
        learner.begin_task(loader, loss_fn)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1, maximize=sign < 0))
        for batch in loader:  # noqa: B007
            if closed:
                losses.append(sign * float(optimizer.step(closure)))
            else:
                closure()
                optimizer.step()
        learner.end_task(loader)
    return learner.model, losses


@pytest.mark.parametrize("kind", [kind for kind in METHODS.values() if not kind.joint], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("closed", [False, True], ids=["step", "closure"])
def test_going_up_minus_the_loss_is_going_down_the_loss(kind: type, closed: bool) -> None:
    (down, losses), (up, other_losses) = (learnt_by(sign, kind, closed) for sign in (1, -1))
    for one, other in zip(down.parameters(), up.parameters(), strict=True):
        assert_close(one, other)
    assert losses == pytest.approx(other_losses, rel=1e-4)
