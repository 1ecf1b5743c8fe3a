"""What OWM remembers of a task: the means of its samples' inputs, however they come, and through files."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import OWM, CuberError
from cuber.networks import MLP
from tests.loops import OPTIMIZERS, learn, loss_fn, same_bits, sgd, train
from tests.models import CASES, CLASSES, Loader, Pooled
from tests.oracles.dense import projector

SETTINGS: dict[str, Any] = {"alpha": 0.1, "alpha_decay": 0.2, "averaged": 5}


def remembered(model: nn.Module, loader: Any, **settings: Any) -> dict[str, Tensor]:
    """After a task in which nothing was learned: the weights are those that it began with."""
    learner = OWM(model, **{**SETTINGS, **settings})
    learn(learner, loader, lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    return learner.memory


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], rtol=1e-9) for name in one)


@pytest.mark.parametrize("name", ["mlp", "grouped strided dilated cnn", "layer used twice", "tied layers"])
def test_samples_are_averaged_alike_however_they_come_in_batches(name: str) -> None:
    case = CASES[name]
    alike = [
        remembered(case.model(dtype=torch.float64), case.loader(0, batch_size=size, dtype=torch.float64))
        for size in (1, 4, 7, 24)
    ]
    assert all(same(alike[0], other) for other in alike[1:])
    others = [
        remembered(case.model(dtype=torch.float64), case.loader(0, dtype=torch.float64), **{setting: value})
        for setting, value in (("averaged", 4), ("alpha", 0.2), ("alpha_decay", 0.3))
    ]
    assert not any(same(alike[0], other) for other in others)


def test_sequences_of_several_lengths_are_averaged_with_their_like() -> None:
    torch.manual_seed(0)
    model = Pooled(nn.Linear(3, 4, bias=False), width=4).double()
    sequences = [torch.randn(2, length, 3, dtype=torch.float64) for length in (4, 2, 4, 2)]
    loader = [(x, torch.zeros(2, dtype=torch.long)) for x in sequences]
    kept = remembered(model, loader, averaged=4, alpha_decay=1.0)["parts.0"]
    means = [torch.cat(sequences[start::2]).mean(0) for start in (0, 1)]
    expected = torch.eye(3, dtype=torch.float64) + sum(mean.T @ mean for mean in means) / 0.1
    assert torch.allclose(kept, expected)


class SequenceFirst(nn.Module):
    """Positions come before samples inside, so that it is not known which vector belongs to which sample."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x.transpose(0, 1)).relu().mean(0))


def test_vectors_of_samples_that_cannot_be_told_apart_hold_no_less_than_their_means() -> None:
    torch.manual_seed(0)
    x = torch.randn(10, 6, 3, dtype=torch.float64)
    loader = [(part, torch.zeros(len(part), dtype=torch.long)) for part in x.split(4)]
    kept = remembered(SequenceFirst().double(), loader, alpha_decay=1.0)["inner"]
    with_one = torch.cat([x, torch.ones(10, 6, 1, dtype=torch.float64)], dim=2)
    vectors, means = with_one.flatten(0, 1), with_one.unflatten(0, (2, 5)).mean(1).flatten(0, 1)
    identity = torch.eye(4, dtype=torch.float64)
    assert torch.allclose(kept, identity + vectors.T @ vectors / (5 * 0.1))
    assert torch.linalg.eigvalsh(kept - identity - means.T @ means / 0.1).min() > -1e-9


def test_inputs_are_those_of_the_final_weights_in_evaluation_mode() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.Linear(6, CLASSES, bias=False)).double()
    loader = CASES["mlp"].loader(0, dtype=torch.float64)
    learner = OWM(model, alpha=0.1, averaged=24)
    learn(learner, loader, lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    assert model.training
    x = torch.cat([x for x, _ in loader])
    mean = (x @ model[0].weight.T + model[0].bias).mean(0).detach()
    expected = torch.eye(6, dtype=torch.float64) + torch.outer(mean, mean) / 0.1
    assert torch.allclose(learner.memory["2"], expected)


class Branches(nn.Module):
    """A trunk and two ways on, of which inputs with a positive first number take one and the others the other."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 6)
        self.left, self.right = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return (self.left if x[0, 0] > 0 else self.right)(self.trunk(x).relu())


def branch_loader(task: int, sign: float) -> Loader:
    loader = CASES["mlp"].loader(task)
    for x, _ in loader:
        x[:, 0] = sign * x[:, 0].abs()
    return loader


def test_a_layer_that_a_task_does_not_reach_remembers_nothing_of_it() -> None:
    torch.manual_seed(0)
    learner = OWM(Branches(), alpha=0.1)
    learn(learner, branch_loader(0, 1.0))
    assert learner.memory.keys() == {"trunk", "left"}
    before = copy.deepcopy(learner.memory)
    model: Any = learner.model
    left = copy.deepcopy(model.left)
    learn(learner, branch_loader(1, -1.0))
    assert learner.memory.keys() == {"trunk", "left", "right"}
    assert torch.equal(learner.memory["left"], before["left"])
    assert not torch.equal(learner.memory["trunk"], before["trunk"])
    assert same_bits(model.left, left)


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("optimizer", ["SGD", "momentum", "Adam", "LBFGS"])
@pytest.mark.parametrize("name", ["mlp", "residual block", "many heads", "transformer"])
def test_going_on_from_files_in_the_middle_of_a_task_gives_the_same_bits(name: str, optimizer: str) -> None:
    case, make = CASES[name], OPTIMIZERS[optimizer]
    learner = OWM(case.model(), **SETTINGS)
    for task in range(2):
        learn(learner, case.loader(task), make)
    loader = case.loader(2)
    learner.begin_task(loader, loss_fn)
    its_optimizer = learner.wrap(make(learner.parameters()))
    train(learner, its_optimizer, loader)
    model = case.model(seed=99)
    model.load_state_dict(through_a_file(learner.model.state_dict()))
    twin = OWM(model, **SETTINGS)
    twin.load_state_dict(through_a_file(learner.state_dict()))
    twin.resume_task(loss_fn)
    twins_optimizer = twin.wrap(make(twin.parameters()))
    twins_optimizer.load_state_dict(through_a_file(its_optimizer.state_dict()))
    for each, steps in ((learner, its_optimizer), (twin, twins_optimizer)):
        torch.manual_seed(5)  # dropout
        train(each, steps, loader, epochs=2)
        each.end_task(loader)
        learn(each, case.loader(3), make)
    assert same_bits(learner.model, twin.model)
    assert learner.memory.keys() == twin.memory.keys()
    assert all(torch.equal(learner.memory[layer], twin.memory[layer]) for layer in learner.memory)


def test_a_learner_put_back_forgets_the_projectors_of_tasks_that_it_has_not_learned_yet() -> None:
    torch.manual_seed(0)
    learner = OWM(Branches(), alpha=1e-4)
    learn(learner, branch_loader(0, 1.0))
    saved, weights = learner.state_dict(), copy.deepcopy(learner.model.state_dict())
    loader = branch_loader(2, -1.0)
    learn(learner, loader)
    fresh = copy.deepcopy(learner.model)
    learner.begin_task(loader, loss_fn)
    learner.load_state_dict(saved)
    twin = OWM(fresh, alpha=1e-4)
    twin.load_state_dict(saved)
    for each in (learner, twin):
        each.model.load_state_dict(weights)
        learn(each, loader)
    assert same_bits(learner.model, twin.model)


def test_memory_is_one_square_matrix_a_layer_however_many_tasks() -> None:
    learner = OWM(CASES["many heads"].model(), **SETTINGS)
    for task in range(3):
        learn(learner, CASES["many heads"].loader(task))
        assert learner.memory_bytes()["projectors"] == 8 * (9**2 + 13**2)
    saved = sum(matrix.nbytes for matrix in learner.state_dict()["remembered"]["memory"].values())
    assert saved == learner.memory_bytes()["projectors"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"alpha": 0.0}, r"OWM: alpha must be a number of at least 1e-09, not 0\.0"),
        ({"alpha": [1.0, -1.0, 1.0]}, r"alpha must be .*, not -1\.0"),
        ({"alpha_decay": 1.5}, r"alpha_decay must be a number from 1e-09 to 1, not 1\.5"),
        ({"alpha_decay": 0.0}, r"alpha_decay must be .*, not 0\.0"),
        ({"averaged": 0}, "averaged must be a whole number of at least 1, not 0"),
        ({"averaged": 2.5}, r"averaged must be a whole number of at least 1, not 2\.5"),
        ({"averaged": [5, 5, 5]}, "averaged must be a whole number"),
        ({"alpha": [1.0, 1.0]}, "alpha has 2 values, but the model has 3 protected layers"),
        ({"alpha_decay": {"layers.0": 1.0}}, r"alpha_decay has no value for layer 'layers\.1'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_trained(settings: Any, sentence: str) -> None:
    with pytest.raises(CuberError, match=sentence):
        OWM(CASES["mlp"].model(), **settings).begin_task(CASES["mlp"].loader(0), loss_fn)


def test_settings_by_the_name_of_a_layer() -> None:
    case = CASES["mlp"]
    by_place = remembered(case.model(), case.loader(0), alpha=[0.1, 0.2, 0.3])
    by_name = remembered(case.model(), case.loader(0), alpha={"layers.2": 0.3, "layers.0": 0.1, "layers.1": 0.2})
    assert same(by_place, by_name)


def test_inputs_too_large_for_alpha_are_refused_and_a_larger_alpha_is_taken() -> None:
    case = CASES["mlp"]
    loader = [(1e3 * x, y) for x, y in case.loader(0, samples=4)]
    learner = OWM(case.model(), alpha=1e-7, averaged=1)
    learner.begin_task(loader, loss_fn)
    learner.wrap(sgd(learner.parameters()))
    with pytest.raises(CuberError, match=r"task 0: the inputs of layer 'layers\.0' are too large for its alpha"):
        learner.end_task(loader)
    assert learner.memory == {}
    learner.alpha = 1e-3
    learner.end_task(loader)
    learner.begin_task(loader, loss_fn)
    P = learner.filter_update(learner.layers["layers.0"], torch.eye(9))
    x = torch.cat([torch.cat([x for x, _ in loader]), torch.ones(4, 1)], dim=1)
    assert torch.allclose(P, (torch.eye(9) - projector(x.T)).float(), atol=1e-4)


def test_inputs_that_are_not_finite_are_refused_and_nothing_is_changed() -> None:
    case = CASES["mlp"]
    learner = OWM(case.model())
    learn(learner, case.loader(0))
    before = copy.deepcopy(learner.memory)
    learner.begin_task(case.loader(1), loss_fn)
    learner.wrap(sgd(learner.parameters()))
    broken = case.loader(1)
    broken[1][0][2, 3] = float("nan")
    with pytest.raises(CuberError, match=r"task 1: layer 'layers\.0' sees inputs that are not finite"):
        learner.end_task(broken)
    with pytest.raises(CuberError, match="the loader yields no batch"):
        learner.end_task([])
    assert same(learner.memory, before)
    learner.end_task(case.loader(1))


@pytest.mark.parametrize("statistics", ["task", "batch"])
def test_shared_norms_that_no_rule_covers_are_frozen_after_the_first_task(statistics: str) -> None:
    case = CASES["residual block"]
    learner = OWM(case.model(), norm_statistics=statistics, norm_parameters="shared", **SETTINGS)
    learn(learner, case.loader(0))
    model: Any = learner.model
    norm = model.norm1.weight.detach().clone()
    learn(learner, case.loader(1))
    assert torch.equal(model.norm1.weight, norm)
    assert learner.memory.keys() == {"conv1", "conv2", "shortcut", "head"}


@pytest.mark.needs_dtype(torch.bfloat16)
def test_changes_of_weights_in_half_precision_are_rounded_once() -> None:
    torch.manual_seed(0)
    learner = OWM(MLP(8, 12, CLASSES).to(torch.bfloat16), alpha=1e-2, averaged=1)
    x, y = torch.randn(4, 8, dtype=torch.bfloat16), torch.randint(CLASSES, (4,))
    learn(learner, [(x, y)])
    learner.begin_task([(x, y)], loss_fn)
    change = torch.randn(12, 8, dtype=torch.bfloat16)
    exact = change.double() @ torch.linalg.inv(learner.memory["layers.0"])
    let_through = learner.filter_update(learner.layers["layers.0"], change)
    assert let_through.dtype == torch.bfloat16
    assert ((let_through - exact).abs() <= 2**-8 * exact.abs() + 1e-6).all()


def test_any_forward_and_any_batch() -> None:
    case = CASES["mlp"]
    plain = OWM(case.model(), **SETTINGS)
    own = OWM(case.model(), **SETTINGS, forward=lambda model, batch: loss_fn(model(batch["image"]), batch["label"]))
    for task in range(2):
        loader = case.loader(task)
        learn(plain, loader)
        named = [{"image": x, "label": y} for x, y in loader]
        own.begin_task(named)
        optimizer = own.wrap(sgd(own.parameters()))
        for batch in named:
            optimizer.zero_grad()
            own.loss(batch).backward()
            optimizer.step()
        own.end_task(named)
    assert same_bits(plain.model, own.model)
    assert same(plain.memory, own.memory)
