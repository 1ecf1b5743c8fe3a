"""Parameters that no rule covers, and that all tasks share, are named, and frozen, trained or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber import CUBER, GPM, HAT, OWM, TRGP, CuberError, FineTune, SoftCUBER
from tests.loops import OPTIMIZERS, detach, learn, loss_fn, train
from tests.models import CASES

DATA = CASES["mlp"]


class Shouting(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


class Standardized(nn.Conv2d):
    """Convolves with another weight than its own."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight - weight.mean((1, 2, 3), keepdim=True), bias)


class Functional(nn.Module):
    """A Linear whose weight is used and which is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bypassed, self.last = nn.Linear(8, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.linear(self.first(x).relu(), self.bypassed.weight).relu())


class Positions(nn.Module):
    """An embedding whose weight is added as a whole, without looking anything up."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(2, 8)
        self.inner, self.out = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x + self.positions.weight.sum(0)).relu())


MODELS: dict[str, tuple[Any, set[str]]] = {
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3)),
        {"1.weight", "1.bias"},
    ),
    "subclass with its own forward": (lambda: nn.Sequential(nn.Linear(8, 6), Shouting(6, 3)), {"1.weight", "1.bias"}),
    "spectral norm": (
        lambda: nn.Sequential(nn.Linear(8, 6), nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))),
        {"1.bias", "1.parametrizations.weight.original"},
    ),
    "embedding read as a matrix": (Positions, {"positions.weight"}),
    "used functionally": (Functional, {"bypassed.weight"}),
}
models = pytest.mark.parametrize(("build", "names"), MODELS.values(), ids=MODELS.keys())


def values(learner: Any, names: set[str]) -> dict[str, Tensor]:
    return {name: learner.model.get_parameter(name).detach().clone() for name in names}


def changed(learner: Any, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in before.items() if not torch.equal(learner.model.get_parameter(name), value)}


@models
def test_they_are_named_with_a_reason_in_repr_and_trained_in_the_first_task(build: Any, names: set[str]) -> None:
    learner = GPM(build(), norm_parameters="shared")
    learner.begin_task(DATA.loader(0), loss_fn)
    assert learner.uncovered_parameters.keys() == names
    lines = repr(learner).splitlines()
    for name in names:
        reason = learner.uncovered_parameters[name]
        assert any(name in line and reason and f"frozen after the first task ({reason})" in line for line in lines)
    before = values(learner, names)
    train(learner, learner.wrap(torch.optim.AdamW(learner.parameters(), lr=0.01)), DATA.loader(0))
    assert changed(learner, before) == names


@models
def test_frozen_they_stand_still_after_the_first_task(build: Any, names: set[str]) -> None:
    learner = TRGP(build(), eps1=0.0, norm_parameters="shared")
    learn(learner, DATA.loader(0))
    before = values(learner, names)
    for task, optimizer in ((1, "AdamW"), (2, "momentum")):
        learn(learner, DATA.loader(task), OPTIMIZERS[optimizer])
        assert not changed(learner, before)
    detach(learner)
    assert all(parameter.requires_grad for parameter in learner.model.parameters())


@models
def test_trained_they_go_on_moving(build: Any, names: set[str]) -> None:
    learner = GPM(build(), uncovered="train", norm_parameters="shared")
    learn(learner, DATA.loader(0))
    before = values(learner, names)
    learn(learner, DATA.loader(1))
    assert changed(learner, before) == names
    assert "trained without protection" in repr(learner)


@models
def test_refused_they_are_an_error_that_names_the_first_and_the_remedy(build: Any, names: set[str]) -> None:
    with pytest.raises(CuberError, match=r"first '.*' \(.*\): freeze them yourself, or choose") as error:
        CUBER(build(), uncovered="error", norm_parameters="shared").begin_task(DATA.loader(0), loss_fn)
    assert any(f"'{name}'" in str(error.value) for name in names)
    model = build()
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    learn(CUBER(model, uncovered="error"), DATA.loader(0))


@pytest.mark.parametrize("uncovered", ["freeze", "train", "error"])
def test_where_everything_is_covered_the_choice_makes_no_difference(uncovered: str) -> None:
    learner = GPM(DATA.model(), uncovered=uncovered)
    for task in range(2):
        learn(learner, DATA.loader(task))
    assert learner.uncovered_parameters == {}


def test_an_error_at_construction_leaves_the_model_free_for_the_next_learner() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    with pytest.raises(CuberError, match="cannot be protected"):
        GPM(model, uncovered="error", norm_parameters="shared")
    assert not any("forward" in module.__dict__ or module._forward_pre_hooks for module in model)
    learn(GPM(model), DATA.loader(0))


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Embedding(3, 4), nn.LayerNorm(4)), nn.Linear(3, 2).requires_grad_(False), nn.ReLU()],
    ids=["nothing covered", "all frozen", "no parameters"],
)
@pytest.mark.parametrize("method", [GPM, TRGP, CUBER, SoftCUBER, OWM, HAT])
def test_a_model_without_any_protectable_layer_is_refused_with_the_reasons(method: Any, model: nn.Module) -> None:
    with pytest.raises(CuberError, match=r"no layer of this model can be protected \(.+\)"):
        method(model)
    FineTune(model).detach()  # nothing is left of the other learner


def test_a_convolution_with_a_way_of_its_own_is_not_called_protected() -> None:
    model = nn.Sequential(Standardized(2, 3, 1), nn.Flatten(), nn.Linear(12, 3))
    learner = GPM(model)
    assert learner.layers.keys() == {"2"}
    assert learner.uncovered_parameters["0.weight"] == "Standardized with a forward of its own"
