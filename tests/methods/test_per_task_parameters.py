"""Vectors that no layer rule covers, such as gains of normalization layers, belong to their task."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import (
    AGEM,
    CUBER,
    ER,
    EWC,
    GPM,
    HAT,
    OWM,
    TRGP,
    CuberError,
    FineTune,
    Method,
    MultiHead,
    Multitask,
    SoftCUBER,
)
from cuber.core.settings import settings_of
from tests.loops import OPTIMIZERS, detach, learn, logits, loss_fn, same_bits, train
from tests.methods.test_resume import momentum, same_memory, through_a_file
from tests.models import CASES

DATA = CASES["mlp"]
OWN = [GPM, TRGP, CUBER, SoftCUBER, OWM, HAT, EWC]
SHARED = [FineTune, AGEM, ER]


class Channels(nn.Module):
    """A norm of channels, between two linear layers, beside a class token and a scale."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 6), norm, nn.Linear(6, 3)
        self.token, self.scale = nn.Parameter(torch.zeros(1, 1, 6)), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.scale * self.norm(self.first(x)).relu() + self.token[0])


NORMS: dict[str, Any] = {
    "LayerNorm": lambda: nn.LayerNorm(6),
    "GroupNorm": lambda: nn.GroupNorm(2, 6),
    "BatchNorm": lambda: nn.BatchNorm1d(6),
    "RMSNorm": lambda: nn.RMSNorm(6),
}
norms = pytest.mark.parametrize("norm", NORMS)


def network(norm: str = "LayerNorm") -> Any:
    torch.manual_seed(0)
    return Channels(NORMS[norm]())


def own_values(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and statistics of everything but the two linear layers."""
    return {
        name: value.clone() for name, value in model.state_dict().items() if not name.startswith(("first.", "last."))
    }


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@norms
@pytest.mark.parametrize("kind", OWN)
def test_a_task_keeps_the_values_that_it_ended_with(kind: type, norm: str) -> None:
    learner = kind(network(norm))
    ended_with = []
    for task in range(3):
        learn(learner, DATA.loader(task), OPTIMIZERS["AdamW"])
        ended_with.append(own_values(learner.model))
    for task in range(3):
        with learner.as_task(task) as model:
            assert same(own_values(model), ended_with[task])
    assert same(own_values(learner.model), ended_with[2])
    for name in dict(network(norm).norm.named_parameters(prefix="norm")) | {"token": 0, "scale": 0}:
        assert not torch.equal(ended_with[0][name], ended_with[1][name]), f"{name} was not trained in task 1"


@pytest.mark.parametrize("kind", [GPM, TRGP, OWM])
def test_old_answers_change_where_they_are_shared_and_trained_and_stay_where_they_are_not(kind: type) -> None:
    changed = {}
    for norm_parameters in ("task", "shared"):
        protecting = {"alpha": 1e-6, "averaged": 1} if kind is OWM else {"threshold": 1.0, "threshold_step": 0.0}
        learner = kind(network(), norm_parameters=norm_parameters, uncovered="train", **protecting)
        old = DATA.loader(0, samples=4)
        learn(learner, old, epochs=3)
        before = logits(learner, 0, old[0][0])
        for task in (1, 2):
            learn(learner, DATA.loader(task), epochs=4)
        changed[norm_parameters] = float((logits(learner, 0, old[0][0]) - before).norm() / before.norm())
    assert changed["task"] < 1e-3 < changed["shared"]


@pytest.mark.parametrize("kind", [GPM, EWC])
def test_one_layer_norm_is_trained_by_hand(kind: type) -> None:
    """Three tasks of one step each: values are those of plain SGD, which starts where the last task ended."""
    learner, rate = kind(network(), **({"lam": 1e4} if kind is EWC else {})), 0.1
    gain = learner.model.norm.weight
    expected = []
    for task in range(3):
        loader = DATA.loader(task, samples=8)
        learner.begin_task(loader, loss_fn)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=rate))
        ((x, y),) = loader
        loss_fn(learner.model(x), y).backward()
        expected.append(gain.detach() - rate * gain.grad)
        optimizer.step()
        learner.end_task(loader)
    for task in range(3):
        assert torch.equal(learner.statistics[task]["norm.weight"], expected[task])
        with learner.as_task(task):
            assert torch.equal(gain, expected[task])


@pytest.mark.parametrize("kind", OWN)
def test_they_are_shared_where_that_is_chosen(kind: type) -> None:
    learner = kind(network(), norm_parameters="shared", **({"lam": 1.0} if kind is EWC else {}))
    ended_with = []
    for task in range(2):
        learn(learner, DATA.loader(task), OPTIMIZERS["AdamW"])
        ended_with.append(own_values(learner.model))
    assert same(*ended_with) == (kind is not EWC), "frozen after the first task, but by EWC"
    assert learner.statistics == [{}, {}]
    with learner.as_task(0) as model:
        assert same(own_values(model), ended_with[1])
    if isinstance(learner, EWC):
        assert learner.importance.keys() >= {"norm.weight", "token"}


def test_the_penalty_leaves_them_out() -> None:
    learner = EWC(network(), lam=5.0)
    for task in range(2):
        learn(learner, DATA.loader(task))
    assert learner.importance.keys() == {"first.weight", "first.bias", "last.weight", "last.bias"}


@pytest.mark.parametrize("kind", [*SHARED, Multitask])
def test_methods_that_train_old_tasks_again_share_them(kind: type) -> None:
    assert "norm_parameters" not in settings_of(kind)
    learner = kind(network())
    if kind is not Multitask:
        learn(learner, DATA.loader(0))
        assert learner.statistics == [{}]


@pytest.mark.parametrize("optimizer", ["SGD", "momentum", "AdamW"])
@pytest.mark.parametrize("kind", OWN)
def test_showing_an_old_task_in_the_middle_of_a_task_changes_no_bit_of_training(kind: type, optimizer: str) -> None:
    learners = []
    for shows in (True, False):
        torch.manual_seed(0)
        learner: Any = kind(network("BatchNorm"))
        learn(learner, DATA.loader(0))
        learner.begin_task(DATA.loader(1), loss_fn)
        wrapped = learner.wrap(OPTIMIZERS[optimizer](learner.parameters()))

        def show(learner: Any = learner) -> None:
            for task in (0, 1, None):
                logits(learner, task, DATA.inputs(0, 4))

        train(learner, wrapped, DATA.loader(1), epochs=2, after_step=show if shows else lambda: None)
        learner.end_task(DATA.loader(1))
        learners.append(learner)
    assert same_bits(learners[0].model, learners[1].model)
    assert same_memory(*learners)


def test_a_graph_that_an_old_task_was_shown_beside_is_still_right_or_an_error() -> None:
    learner = GPM(network())
    for task in range(2):
        learn(learner, DATA.loader(task))
    (x, y), *_ = DATA.loader(1)
    with learner.as_task(1):  # which is shown anyway
        loss = loss_fn(learner.model(x), y)
    loss.backward()
    with learner.as_task(0):
        loss = loss_fn(learner.model(x), y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("kind", OWN)
def test_going_on_from_a_file_in_the_middle_of_a_task_gives_the_same_bits(kind: type) -> None:
    torch.manual_seed(0)
    learner = kind(network("BatchNorm"))
    learn(learner, DATA.loader(0), momentum)
    loader = DATA.loader(1)
    learner.begin_task(loader, loss_fn)
    optimizer = learner.wrap(momentum(learner.parameters()))
    train(learner, optimizer, loader)
    twin = kind(Channels(NORMS["BatchNorm"]()))
    twin.model.load_state_dict(through_a_file(learner.model.state_dict()))
    twin.load_state_dict(through_a_file(learner.state_dict()))
    twin.resume_task(loss_fn)
    twins_optimizer = twin.wrap(momentum(twin.parameters()))
    twins_optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    for each, its_optimizer in ((learner, optimizer), (twin, twins_optimizer)):
        torch.manual_seed(5)
        train(each, its_optimizer, loader, epochs=2)
        each.end_task(loader)
        learn(each, DATA.loader(2), momentum)
    assert same_bits(learner.model, twin.model)
    assert same_memory(learner, twin)
    for task in range(3):
        assert torch.equal(logits(learner, task, DATA.inputs(0, 4)), logits(twin, task, DATA.inputs(0, 4)))


@pytest.mark.parametrize("kind", [GPM, EWC])
def test_a_state_of_the_version_before_gives_old_tasks_the_values_that_it_was_saved_with(kind: type) -> None:
    before = kind(network(), norm_parameters="shared")
    for task in range(2):
        learn(before, DATA.loader(task))
    state = before.state_dict()
    state.pop("settings", None)  # which that version did not save
    learner = kind(copy.deepcopy(before.model))
    learner.load_state_dict(state)
    frozen = own_values(learner.model)
    learn(learner, DATA.loader(2), OPTIMIZERS["AdamW"])
    assert not same(own_values(learner.model), frozen)
    for task in range(2):
        with learner.as_task(task) as model:
            assert same(own_values(model), frozen)


def test_a_task_that_is_refused_leaves_all_values_as_they_were() -> None:
    learner = GPM(network("BatchNorm"))
    for task in range(2):
        learn(learner, DATA.loader(task))
    before, kept = own_values(learner.model), copy.deepcopy(learner.statistics)
    with pytest.raises(CuberError):
        learner.begin_task([(torch.zeros(4, 9), torch.zeros(4, dtype=torch.long))], loss_fn)
    assert same(own_values(learner.model), before)
    assert all(map(same, learner.statistics, kept))
    learner.begin_task(DATA.loader(2), loss_fn)


def test_what_the_user_froze_is_no_tasks_own_until_it_is_trained() -> None:
    model = network()
    model.norm.requires_grad_(False)
    learner = GPM(model)
    learn(learner, DATA.loader(0))
    assert learner.statistics[0].keys() == {"token", "scale"}
    model.norm.requires_grad_(True)
    gain = model.norm.weight.detach().clone()
    learn(learner, DATA.loader(1))
    assert not torch.equal(model.norm.weight, gain)
    trained = model.norm.weight.detach().clone()
    model.norm.requires_grad_(False)
    learn(learner, DATA.loader(2))
    for task, expected in enumerate((gain, trained, trained)):
        with learner.as_task(task):
            assert torch.equal(model.norm.weight, expected)


def test_heads_and_matrices_are_no_vectors_that_tasks_keep() -> None:
    model = MultiHead(nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6)), 6, [3, 1])
    model.backbone.register_parameter("positions", nn.Parameter(torch.zeros(1, 2, 6)))
    learner = GPM(model)
    learner.begin_task(DATA.loader(0), loss_fn)
    assert set(learner.per_task_parameters()) == {"backbone.1.weight", "backbone.1.bias"}
    assert learner.unprotected_parameters().keys() == {"backbone.positions"}


def test_a_gain_that_two_layers_share_is_kept_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    model[3].weight = model[1].weight
    learner = GPM(model)
    gains = []
    for task in range(2):
        learn(learner, DATA.loader(task))
        gains.append(model[1].weight.detach().clone())
    assert learner.statistics[0].keys() == {"1.weight", "1.bias", "3.bias"}
    for task in range(2):
        with learner.as_task(task):
            assert model[3].weight is model[1].weight
            assert torch.equal(model[3].weight, gains[task])


def test_a_method_of_a_users_own_may_keep_parameters_per_task() -> None:
    class Apart(FineTune):
        def per_task_parameters(self) -> list[str]:
            return ["last.bias"]

    learner: Method = Apart(network())
    biases = []
    for task in range(2):
        learn(learner, DATA.loader(task))
        biases.append(learner.model.last.bias.detach().clone())  # type: ignore[union-attr, operator]
    with learner.as_task(0) as model:
        assert torch.equal(model.last.bias, biases[0])  # type: ignore[arg-type, union-attr]
    assert not torch.equal(biases[0], biases[1])


def test_their_bytes_are_counted_and_detaching_keeps_the_present_values() -> None:
    learner = GPM(network())
    for task in range(2):
        learn(learner, DATA.loader(task))
    assert learner.memory_bytes()["statistics"] == 2 * 4 * (6 + 6 + 6 + 1)
    present = own_values(learner.model)
    detach(learner)
    assert same(own_values(learner.model), present)


def test_a_model_in_another_precision_shows_old_values_rounded() -> None:
    learner = GPM(network())
    for task in range(2):
        learn(learner, DATA.loader(task))
    learner.model.double()
    with learner.as_task(0) as model:
        assert torch.equal(model.norm.weight.float(), learner.statistics[0]["norm.weight"])  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("between_tasks", [True, False])
def test_no_state_is_saved_while_the_model_has_the_values_of_another_task(between_tasks: bool) -> None:
    learner = GPM(network())
    learn(learner, DATA.loader(0))
    if not between_tasks:
        learner.begin_task(DATA.loader(1), loss_fn)
        train(learner, learner.wrap(OPTIMIZERS["AdamW"](learner.parameters())), DATA.loader(1))
    before = own_values(learner.model)
    with (
        learner.as_task(0),
        pytest.raises(CuberError, match=r"state_dict inside as_task.*leave the block"),
    ):
        learner.state_dict()
    # What was refused would have lost the values of the present task.
    assert same(own_values(learner.model), before)
    other = GPM(network())
    other.model.load_state_dict(learner.model.state_dict())
    other.load_state_dict(through_a_file(learner.state_dict()))
    assert same(own_values(other.model), before)
