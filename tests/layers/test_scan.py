"""Which layers of a model can be protected, and the reason for every parameter that cannot."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cuber import CuberError
from cuber.layers import RULES, Rule, register, scan
from cuber.layers.rule import rule_for
from tests.models import CASES, Tied


class Shouting(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).exp()


class Quiet(nn.Linear):
    """A subclass that computes what its parent computes."""

    def __init__(self) -> None:
        super().__init__(3, 3)


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.inner = nn.Linear(4, 4)
        self.out = nn.Linear(4, 5)
        self.out.weight = self.words.weight


def names(model: nn.Module) -> tuple[list[str], dict[str, str]]:
    found = scan(model)
    return list(found.layers), found.uncovered


def test_linear_and_convolutional_layers_are_found_in_the_order_of_the_model() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv3d(1, 2, 3)), nn.Linear(3, 2))
    assert names(model) == (["0", "1.0", "1.1", "2"], {})


def test_a_model_that_is_a_single_layer_has_a_name_for_it() -> None:
    assert names(nn.Linear(3, 2)) == (["linear"], {})


def test_a_subclass_is_covered_as_long_as_it_computes_what_its_parent_does() -> None:
    covered, uncovered = names(nn.Sequential(Quiet(), Shouting(3, 3)))
    assert covered == ["0"]
    assert uncovered == dict.fromkeys(["1.weight", "1.bias"], "Shouting with a forward of its own")


def test_a_forward_that_a_user_has_put_on_one_module_is_not_covered() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].forward = lambda x: x  # type: ignore[method-assign]
    covered, uncovered = names(model)
    assert covered == ["0"]
    assert uncovered["1.weight"] == "Linear with a forward of its own"


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.BatchNorm1d(3), "BatchNorm1d"),
        (nn.LayerNorm(3), "LayerNorm"),
        (nn.Embedding(4, 3, max_norm=1.0), "Embedding with max_norm"),
        (nn.Embedding(4, 3, sparse=True), "Embedding with sparse gradients"),
        (nn.PReLU(3), "PReLU"),
        (nn.LSTMCell(3, 3), "LSTMCell"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_modules_are_uncovered_by_name_of_their_kind(module: nn.Module, kind: str) -> None:
    covered, uncovered = names(nn.Sequential(nn.Linear(3, 3), module))
    assert covered == ["0"]
    assert uncovered == {f"1.{name}": f"no rule for {kind}" for name, _ in module.named_parameters()}


def test_a_bare_parameter_is_uncovered() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(2, 2), nn.Parameter(torch.ones(2))

    assert names(Scaled()) == (["layer"], {"scale": "no rule for Scaled"})


def test_tied_layers_of_one_kind_are_one_layer_and_of_two_kinds_none() -> None:
    covered, uncovered = names(Tied())
    assert (covered, uncovered) == (["first", "last"], {})
    assert len(scan(Tied()).layers["first"].modules) == 2
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 2, bias=False), nn.Conv1d(4, 2, 1, bias=False))
    model[2].weight = model[1].weight
    assert names(model) == (["0"], {"1.weight": "tied between Conv1d, Linear"})


def test_the_weight_of_an_embedding_is_a_table_and_may_be_that_of_a_layer_too() -> None:
    found = scan(LanguageModel())
    assert (list(found.layers), list(found.tables), found.uncovered) == (["out", "inner"], ["words"], {})
    assert found.layers["out"].parameter is found.tables["words"].parameter
    assert found.layers["out"].with_bias
    assert list(scan(nn.Embedding(4, 3)).tables) == ["embedding"]
    model = nn.Sequential(nn.Embedding(4, 3), nn.LSTMCell(3, 1), nn.Linear(2, 2))
    model[1].weight_ih = model[0].weight
    assert scan(model).uncovered["0.weight"] == "tied between Embedding, LSTMCell"


def test_tied_weights_with_biases_apart_are_uncovered() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    covered, uncovered = names(model)
    assert covered == ["2"]
    assert uncovered.keys() == {"0.weight", "0.bias", "1.bias"}


def test_a_bias_shared_by_different_weights_covers_neither() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].bias = model[0].bias
    assert names(model)[0] == ["2"]


def test_frozen_parameters_are_neither_covered_nor_uncovered() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    found = scan(model)
    assert list(found.layers) == ["2"]
    assert found.layers["2"].dimension == 3
    assert found.uncovered == {}


def test_a_bias_that_trains_on_a_frozen_weight_is_uncovered() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].weight.requires_grad_(False)
    assert names(model) == (["1"], {"0.bias": "not the weight of Linear"})


def test_exempt_parameters_are_in_neither_list() -> None:
    model = CASES["many heads"].model()
    found = scan(model, exempt=model.heads.parameters())  # type: ignore[union-attr]
    assert list(found.layers) == ["backbone.layers.0", "backbone.layers.1"]
    assert found.uncovered == {}


def test_a_lazy_layer_is_an_error_that_names_it_and_the_remedy() -> None:
    with pytest.raises(CuberError, match=r"'1\.0'.*run one batch through the model"):
        scan(nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.LazyLinear(3))))


def test_a_new_layer_type_is_one_registered_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuber.layers.rule.RULES", RULES.copy())

    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(2, 3)), None

        def forward(self, x: Tensor) -> Tensor:
            return 2 * x @ self.weight.T

    assert rule_for(Doubled()) is None

    @register(Doubled)
    class DoubledRule(Rule):
        @staticmethod
        def vectors(layer: nn.Module, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def apply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return 2 * x @ weight.T

    assert rule_for(Doubled()) is DoubledRule
    assert names(nn.Sequential(Doubled(), nn.Linear(2, 2)))[0] == ["0", "1"]
