"""What is saved is all there is: going on from a file gives the same bits as never having stopped."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

from cuber import AGEM, CUBER, ER, EWC, GPM, TRGP, CuberError, FineTune
from cuber.methods import METHODS
from cuber.networks import MLP
from tests.loops import learn, logits, loss_fn, same_bits, train
from tests.models import CASES, Case, cases

SETTINGS: dict[type, dict[str, Any]] = {
    FineTune: {},
    AGEM: {"memory": 20, "replay": 6},
    ER: {"memory": 20, "replay": 6},
    EWC: {"lam": 5.0},
    GPM: {"threshold": 0.8},
    TRGP: {"threshold": 0.8, "eps1": 0.1},
    CUBER: {"threshold": 0.8, "eps1": 0.1, "eps2": -0.2, "lam": 0.1},
}
methods = pytest.mark.parametrize("kind", SETTINGS)


def through_a_file(state: Any) -> Any:
    """As after a crash: only tensors, numbers, names, lists and dictionaries survive."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def batches(case: Case, task: int) -> Any:
    return case.loader(task, samples=8, batch_size=4)


def same_memory(one: Any, other: Any) -> bool:
    def flat(state: Any) -> list[Any]:
        if isinstance(state, dict):
            return [entry for key, value in state.items() for entry in (key, *flat(value))]
        if isinstance(state, list | tuple):
            return [entry for value in state for entry in flat(value)]
        return [state]

    ours, theirs = flat(one.state_dict()), flat(other.state_dict())
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(ours, theirs, strict=True)
    )


def reborn(learner: Any, case: Case) -> Any:
    """Another model and another learner, with what the files of the first hold."""
    model = case.model(seed=99)
    model.load_state_dict(through_a_file(learner.model.state_dict()))
    twin = type(learner)(model, **SETTINGS[type(learner)])
    twin.load_state_dict(through_a_file(learner.state_dict()))
    return twin


@methods
@pytest.mark.parametrize("case", cases())
def test_between_tasks(kind: type, case: Case) -> None:
    learner = kind(case.model(), **SETTINGS[kind])
    for task in range(2):
        learn(learner, batches(case, task), momentum)
    twin = reborn(learner, case)
    x = case.inputs(0, 5)
    for task in range(2):
        assert torch.equal(logits(twin, task, x), logits(learner, task, x))
    for each in (learner, twin):
        torch.manual_seed(5)
        learn(each, batches(case, 2), momentum)
    assert same_bits(learner.model, twin.model)
    assert same_memory(learner, twin)


@methods
@pytest.mark.parametrize("name", ["mlp", "residual block", "many heads", "transformer"])
def test_in_the_middle_of_a_task(kind: type, name: str) -> None:
    case = CASES[name]
    learner = kind(case.model(), **SETTINGS[kind])
    for task in range(2):
        learn(learner, batches(case, task), momentum)
    loader = batches(case, 2)
    learner.begin_task(loader, loss_fn)
    optimizer = learner.wrap(momentum(learner.parameters()))
    train(learner, optimizer, loader)
    if kind is CUBER:
        regimes = [r for by_task in learner.regimes[-1].values() for r in by_task.values()]
        assert any(regime.number == 3 for regime in regimes), "regime 3 is not alive, so nothing is shown"
    twin = reborn(learner, case)
    twin.resume_task(loss_fn)
    twins_optimizer = twin.wrap(momentum(twin.parameters()))
    twins_optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    assert twin.epoch == 1
    assert [name for name, _ in twin.named_parameters()] == [name for name, _ in learner.named_parameters()]
    for each, its_optimizer in ((learner, optimizer), (twin, twins_optimizer)):
        torch.manual_seed(5)  # dropout
        train(each, its_optimizer, loader, epochs=2)
        each.end_task(loader)
        learn(each, batches(case, 3), momentum)
    assert same_bits(learner.model, twin.model)
    assert same_memory(learner, twin)


@pytest.mark.parametrize("first", ["load", "wrap"])
def test_in_the_middle_of_a_task_with_the_history_of_lbfgs(first: str) -> None:
    case = CASES["mlp"]
    learner = CUBER(case.model(), **SETTINGS[CUBER])
    learn(learner, case.loader(0))
    loader = case.loader(1)
    learner.begin_task(loader, loss_fn)
    optimizer = learner.wrap(torch.optim.LBFGS(learner.parameters(), lr=0.1, max_iter=3))
    train(learner, optimizer, loader)
    twin = reborn(learner, case)
    twin.resume_task(loss_fn)
    twins_optimizer = torch.optim.LBFGS(twin.parameters(), lr=0.1, max_iter=3)
    if first == "wrap":
        twin.wrap(twins_optimizer)
    twins_optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    twin.wrap(twins_optimizer)
    for each, its_optimizer in ((learner, optimizer), (twin, twins_optimizer)):
        train(each, its_optimizer, loader)
        each.end_task(loader)
    assert same_bits(learner.model, twin.model)


def test_demotions_after_resuming_are_those_of_an_uninterrupted_task() -> None:
    case = CASES["mlp"]
    learner = CUBER(case.model(), eps1=0.0, eps2=-1.0)
    learn(learner, case.loader(0))
    loader = case.loader(1)
    learner.begin_task(loader, loss_fn)
    train(learner, learner.wrap(momentum(learner.parameters())), loader)
    twin = CUBER(copy.deepcopy(learner.model), eps1=0.0, eps2=-1.0)
    twin.load_state_dict(through_a_file(learner.state_dict()))
    twin.resume_task(loss_fn)
    twin.wrap(momentum(twin.parameters()))
    for each in (learner, twin):
        each.eps2 = 0.1
        each.end_epoch()
    assert twin.regimes == learner.regimes
    assert any(r.demoted_at == 2 for by_task in twin.regimes[-1].values() for r in by_task.values())


def test_the_loss_must_be_named_again() -> None:
    case = CASES["mlp"]
    learner = CUBER(case.model(), eps1=0.0, eps2=-1.0)
    learn(learner, case.loader(0))
    learner.begin_task(case.loader(1), loss_fn)
    twin = CUBER(case.model(), eps1=0.0, eps2=-1.0)
    twin.load_state_dict(through_a_file(learner.state_dict()))
    twin.wrap(momentum(twin.parameters()))
    with pytest.raises(CuberError, match=r"resume_task\(loss_fn\)"):
        twin.end_epoch()


@methods
def test_a_state_of_another_method_is_refused(kind: type) -> None:
    other = GPM if kind is not GPM else TRGP
    learner = kind(CASES["mlp"].model())
    with pytest.raises(CuberError, match=rf"saved by {other.__name__}, not {kind.__name__}"):
        learner.load_state_dict(other(CASES["mlp"].model()).state_dict())
    with pytest.raises(CuberError, match="something else"):
        learner.load_state_dict({})
    learn(learner, CASES["mlp"].loader(0))


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (MLP(8, 12, 9, 3, bias=True), r"'layers\.1\.weight' is \[10, 12\] there and \[9, 12\] here"),
        (MLP(8, 12, 10, 3), r"'layers\.0\.bias' is \[12\] there and missing here"),
        (nn.Sequential(nn.Linear(8, 3)), r"'layers\.0\.weight' is \[12, 8\] there and missing here"),
    ],
    ids=["narrower", "without bias", "another"],
)
def test_a_state_of_another_model_is_refused_by_the_first_parameter_that_differs(
    model: nn.Module, difference: str
) -> None:
    learner = CUBER(CASES["mlp"].model())
    learn(learner, CASES["mlp"].loader(0))
    other = CUBER(model)
    with pytest.raises(CuberError, match=difference):
        other.load_state_dict(learner.state_dict())
    assert other.tasks == 0
    learn(other, CASES["mlp"].loader(0))


@pytest.mark.parametrize("kind", [FineTune, *(kind for kind in (GPM, TRGP, CUBER))])
def test_a_snapshot_in_memory_does_not_change_with_the_learner(kind: type) -> None:
    case = CASES["mlp"]
    learner = kind(case.model(), **SETTINGS[kind])
    learn(learner, case.loader(0), momentum)
    learner.begin_task(case.loader(1), loss_fn)
    optimizer = learner.wrap(momentum(learner.parameters()))
    snapshot, frozen = learner.state_dict(), copy.deepcopy(learner.state_dict())
    train(learner, optimizer, case.loader(1))
    learner.end_task(case.loader(1))
    learn(learner, case.loader(2), momentum)
    one, other = kind(case.model(), **SETTINGS[kind]), kind(case.model(), **SETTINGS[kind])
    one.load_state_dict(snapshot)
    other.load_state_dict(frozen)
    assert same_memory(one, other)


def test_a_layer_that_was_frozen_is_still_known_to_have_been_after_a_resumption() -> None:
    model = CASES["mlp"].model()
    model.layers[1].requires_grad_(False)
    learner = GPM(model)
    learn(learner, CASES["mlp"].loader(0))
    twin_model = copy.deepcopy(model)
    twin = GPM(twin_model)
    twin.load_state_dict(through_a_file(learner.state_dict()))
    twin_model.layers[1].requires_grad_(True)
    with pytest.raises(CuberError, match=r"layers\.1.*frozen while earlier tasks"):
        twin.begin_task(CASES["mlp"].loader(1), loss_fn)


def test_a_state_without_energies_is_refused_by_a_learner_that_needs_them() -> None:
    case = CASES["mlp"]
    learner = CUBER(case.model(), eps1=0.0, eps2=-1.0, penalty="norm")
    learn(learner, case.loader(0))
    twin = CUBER(case.model(), eps1=0.0, eps2=-1.0, penalty="energy")
    with pytest.raises(CuberError, match="another penalty than 'energy'"):
        twin.load_state_dict(through_a_file(learner.state_dict()))


@pytest.mark.parametrize("kind", [kind for kind in METHODS.values() if not kind.joint], ids=lambda kind: kind.__name__)
def test_a_learner_that_is_put_back_to_the_beginning_learns_as_a_new_one(kind: type) -> None:
    case = CASES["mlp"]
    learner, other = kind(case.model()), kind(case.model())
    fresh, weights = learner.state_dict(), copy.deepcopy(learner.model.state_dict())
    for task in range(2):
        learn(learner, case.loader(task))
    learner.load_state_dict(fresh)
    learner.model.load_state_dict(weights)
    for one in (learner, other):
        torch.manual_seed(0)
        for task in range(2):
            learn(one, case.loader(task))
    assert same_bits(learner.model, other.model)
    assert same_memory(learner, other)
