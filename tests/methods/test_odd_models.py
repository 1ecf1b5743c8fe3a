"""Layers used twice, tied, frozen, never reached, built late, added, replaced: right, or an error that names them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, GPM, TRGP, CuberError
from tests.loops import OPTIMIZERS, Watch, learn, logits, loss_fn, scaled, train
from tests.models import CASES
from tests.oracles.bases import subspace
from tests.oracles.dense import largest_angle

DATA = CASES["mlp"]


class Branches(nn.Module):
    """Task after task may take another way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(8, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.turn = "left"

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, self.turn)(self.first(x).relu())


@pytest.mark.parametrize("name", ["layer used twice", "tied layers"])
def test_a_weight_used_twice_is_protected_on_the_inputs_of_both_uses(name: str) -> None:
    model: Any = CASES[name].model()
    learner = GPM(model, threshold=0.9)
    loader = DATA.loader(0)
    learn(learner, loader)
    x = torch.cat([x for x, _ in loader])
    with torch.no_grad():
        if name == "layer used twice":
            layer, once = "again", model.first(x).relu()
            seen = torch.cat([once, model.again(once).relu()])
            seen = torch.cat([seen, torch.ones(len(seen), 1)], dim=1)
        else:
            layer, seen = "first", torch.cat([x, model.first(x).relu()])
    expected = subspace(seen.T, 0.9)
    assert learner.memory[layer].size == expected.shape[1]
    assert largest_angle(learner.memory[layer].basis, expected) < 1e-3


@pytest.mark.parametrize("name", ["layer used twice", "tied layers"])
def test_a_weight_used_twice_is_scaled_in_both_places(name: str) -> None:
    learner = TRGP(CASES[name].model(), eps1=0.0, threshold=0.9)
    for task in range(2):
        learn(learner, DATA.loader(task))
    x = DATA.inputs(0, 40)
    answers = logits(learner, 1, x)
    for layer_name, layer in learner.layers.items():
        basis, A = learner.memory[layer_name].basis_of(0), scaled(learner, 1, layer_name)
        layer.set_matrix(layer.matrix().detach() @ (torch.eye(layer.dimension) + basis @ A @ basis.T))
    assert torch.allclose(logits(learner, None, x), answers, atol=1e-5)


def test_a_layer_that_a_task_never_reaches_is_neither_moved_nor_owned_by_it() -> None:
    model = Branches()
    learner = CUBER(model, eps1=0.0, eps2=-1.0)
    learn(learner, DATA.loader(0))
    assert learner.memory["right"].size == 0
    left, right = model.left.weight.detach().clone(), model.right.weight.detach().clone()
    model.turn = "right"
    learn(learner, DATA.loader(1), OPTIMIZERS["AdamW"])
    assert torch.equal(model.left.weight, left)
    assert not torch.equal(model.right.weight, right)
    assert learner.memory["left"].owners.any(1).tolist() == [True, False]
    assert learner.memory["right"].owners.any(1).tolist() == [False, True]
    assert learner.regimes[1]["left"][0].number == 1
    model.turn = "left"
    learn(learner, DATA.loader(2))


def test_a_layer_frozen_all_along_is_left_alone() -> None:
    model: Any = DATA.model()
    model.layers[1].requires_grad_(False)
    learner = GPM(model)
    before = model.layers[1].weight.clone()
    for task in range(2):
        learn(learner, DATA.loader(task))
    assert list(learner.memory) == ["layers.0", "layers.2"]
    assert torch.equal(model.layers[1].weight, before)


def test_a_layer_frozen_first_and_trained_later_is_an_error_that_names_it() -> None:
    model: Any = DATA.model()
    model.layers[1].requires_grad_(False)
    learner = GPM(model)
    learn(learner, DATA.loader(0))
    model.layers[1].requires_grad_(True)
    with pytest.raises(CuberError, match=r"'layers\.1' was frozen while earlier tasks were learned.*keep it frozen"):
        learner.begin_task(DATA.loader(1), loss_fn)
    model.layers[1].requires_grad_(False)
    learn(learner, DATA.loader(1))


def test_a_layer_frozen_for_one_task_only_is_protected_for_that_task_too() -> None:
    model: Any = DATA.model()
    learner = GPM(model, threshold=0.5)
    learn(learner, DATA.loader(0))
    model.layers[1].requires_grad_(False)
    learn(learner, DATA.loader(1))
    assert learner.memory["layers.1"].owners.any(1).tolist() == [True, True]
    model.layers[1].requires_grad_(True)
    learner.begin_task(DATA.loader(2), loss_fn)
    watch = Watch.over(learner)
    train(learner, learner.wrap(torch.optim.Adam(learner.parameters(), lr=0.01)), DATA.loader(2))
    watch.held()


@pytest.mark.parametrize("trained_first", [True, False])
def test_a_bias_that_is_trained_in_some_tasks_only_is_an_error_that_names_its_layer(trained_first: bool) -> None:
    model: Any = DATA.model()
    model.layers[1].bias.requires_grad_(trained_first)
    learner = GPM(model)
    learn(learner, DATA.loader(0))
    model.layers[1].bias.requires_grad_(not trained_first)
    with pytest.raises(CuberError, match=r"bias of layer 'layers\.1'"):
        learner.begin_task(DATA.loader(1), loss_fn)


def test_a_weight_frozen_beside_a_bias_that_trains_is_not_touched() -> None:
    model: Any = DATA.model()
    learner = GPM(model, uncovered="train", threshold=0.5)
    learn(learner, DATA.loader(0))
    model.layers[1].weight.requires_grad_(False)
    before = model.layers[1].weight.clone()
    learn(learner, DATA.loader(1), OPTIMIZERS["Adam"])
    assert torch.equal(model.layers[1].weight, before)


def test_with_every_protected_layer_frozen_there_is_nothing_for_a_task_to_learn() -> None:
    case = CASES["many heads"]
    model: Any = case.model()
    learner = CUBER(model)
    learn(learner, case.loader(0))
    model.backbone.requires_grad_(False)
    with pytest.raises(CuberError, match=r"reaches none of the protected layers.*or they are frozen"):
        learn(learner, case.loader(1))


def test_a_lazy_layer_is_an_error_that_names_it_and_the_remedy_and_then_works() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.LazyLinear(3))
    with pytest.raises(CuberError, match=r"layer '2' has no weights yet.*run one batch"):
        GPM(model)
    model(DATA.inputs(0, 2))
    learn(GPM(model), DATA.loader(0))


def test_a_layer_added_between_tasks_is_protected_from_then_on() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    learner = CUBER(model, eps1=0.0, eps2=1.1, threshold=0.5)
    learn(learner, DATA.loader(0))
    model.add_module("more", nn.Linear(3, 3))
    learn(learner, DATA.loader(1))
    assert learner.memory["more"].owners.any(1).tolist() == [False, True]
    learner.begin_task(DATA.loader(2), loss_fn)
    watch = Watch.over(learner)
    train(learner, learner.wrap(torch.optim.Adam(learner.parameters(), lr=0.01)), DATA.loader(2))
    watch.held()
    assert watch.pools["more"].shape[1] > 0


def test_a_normalization_layer_added_between_tasks_keeps_statistics_per_task_from_then_on() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Sequential(nn.ReLU()), nn.Linear(6, 3))
    learner = GPM(model)
    learn(learner, DATA.loader(0))
    model[1].add_module("norm", nn.BatchNorm1d(6))
    learn(learner, DATA.loader(1))
    assert "1.norm.running_mean" in learner.statistics[1]


def test_a_layer_replaced_between_tasks_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    learner = GPM(model)
    learn(learner, DATA.loader(0))
    model[0] = nn.Linear(8, 6)
    with pytest.raises(CuberError, match="layer '0' is another module than in earlier tasks"):
        learn(learner, DATA.loader(1))


def test_weights_loaded_between_tasks_are_what_is_protected() -> None:
    learner = GPM(DATA.model(), threshold=0.5)
    learn(learner, DATA.loader(0))
    learner.model.load_state_dict(DATA.model(seed=3).state_dict())
    learner.begin_task(DATA.loader(1), loss_fn)
    watch = Watch.over(learner)
    train(learner, learner.wrap(torch.optim.Adam(learner.parameters(), lr=0.01)), DATA.loader(1))
    watch.held()
    assert watch.moved() > 1e-3


def test_a_model_that_is_one_layer_works() -> None:
    learner = CUBER(nn.Linear(8, 3), eps1=0.0)
    for task in range(3):
        learn(learner, DATA.loader(task))
    assert list(learner.memory) == ["linear"]


def test_weights_moved_past_the_optimizer_are_worth_a_warning() -> None:
    learner = GPM(DATA.model())
    learn(learner, DATA.loader(0))
    learner.begin_task(DATA.loader(1), loss_fn)
    train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1)), DATA.loader(1))
    with torch.no_grad():
        learner.layers["layers.1"].parameter.mul_(1.5)
    with pytest.warns(UserWarning, match=r"'layers\.1' moved by .*% in directions that old tasks need"):
        learner.end_task(DATA.loader(1))
    assert learner.tasks == 2
