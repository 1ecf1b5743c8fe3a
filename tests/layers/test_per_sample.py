"""What a layer's inputs and output gradients tell of single samples is what autograd tells of each alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber.layers import ProtectedLayer, per_sample, sample_gradients, sum_of_squares, uses_of
from tests.layers.table import LAYERS, LayerCase, protected

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
BATCHED = [pytest.param(case, id=case.name) for case in LAYERS if case.batched]


def mean_loss(output: Tensor, weights: Tensor) -> Tensor:
    return (weights * output.square()).sum() / len(output)


def one_by_one(layer: ProtectedLayer, loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of each sample's own loss, samples x out x d."""
    gradients = [torch.autograd.grad(loss(x[i : i + 1]), layer.parameters) for i in range(len(x))]
    return torch.stack([layer.join(list(gradient)) for gradient in gradients])


@pytest.mark.parametrize("case", BATCHED)
def test_every_layer_with_every_option_tells_the_gradient_of_each_sample(case: LayerCase) -> None:
    module, x = case.layer(), case.input()
    layer = protected(module)
    weights = torch.randint(-3, 4, module(x).shape[1:]).double()
    expected = one_by_one(layer, lambda x: mean_loss(module(x), weights), x)
    (uses,) = uses_of([layer], lambda: mean_loss(module(x), weights), len(x)).values()
    assert all(use.is_clear() for use in uses)
    assert torch.equal(sample_gradients(uses, slice(0, len(x))), expected)
    assert torch.equal(sample_gradients(uses, slice(1, 2)), expected[1:2])
    assert torch.equal(sum_of_squares(uses), expected.square().sum(0))
    assert expected.square().sum(0).any()


@pytest.mark.parametrize("samples_at_a_time", [1, 2, 3])
def test_however_little_memory_there_is(samples_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Conv2d(2, 3, 3).double()
    layer, x = protected(module), torch.randn(5, 2, 6, 6).double()
    (uses,) = uses_of([layer], lambda: module(x).square().sum() / 5, 5).values()
    whole = sum_of_squares(uses)
    chunks = []
    original = per_sample.sample_gradients
    monkeypatch.setattr(
        per_sample, "sample_gradients", lambda uses, which: chunks.append(original(uses, which)) or chunks[-1]
    )
    monkeypatch.setattr(per_sample, "BYTES", samples_at_a_time * (3 + 16) * 19 * 8)
    assert torch.allclose(sum_of_squares(uses), whole, rtol=1e-12)
    assert [len(chunk) for chunk in chunks] == {1: [1] * 5, 2: [2, 2, 1], 3: [3, 2]}[samples_at_a_time]


class Model(nn.Module):
    """A layer on any leading dimensions, used as the function says."""

    def __init__(self, layer: nn.Module, use: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.use = layer, use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.layer, x)


USES: dict[str, tuple[nn.Module, tuple[int, ...], Callable[[Any, Tensor], Tensor]]] = {
    "twice": (nn.Linear(4, 4), (4,), lambda layer, x: layer(layer(x).relu())),
    "twice, with other positions": (nn.Linear(4, 4), (3, 4), lambda layer, x: layer(layer(x).relu().mean(1))),
    "samples and positions in one dimension": (
        nn.Linear(4, 2),
        (3, 4),
        lambda layer, x: layer(x.flatten(0, 1)).unflatten(0, (-1, 3)).sum(1),
    ),
    "grouped, on parts of the samples": (
        nn.Conv1d(4, 6, 2, groups=2),
        (3, 4, 5),
        lambda layer, x: layer(x.flatten(0, 1)).unflatten(0, (-1, 3)).sum((1, 3)),
    ),
    "its output overwritten": (nn.Linear(4, 4), (4,), lambda layer, x: layer(x).relu_()),
    "input by name": (nn.Linear(4, 4), (4,), lambda layer, x: layer(input=x)),
    "only for some, the rest masked": (nn.Linear(4, 4), (4,), lambda layer, x: layer(x) * (x[:, :1] > 0)),
}


@pytest.mark.parametrize("name", USES)
def test_however_the_layer_is_used(name: str) -> None:
    module, shape, use = USES[name]
    model = Model(module.double(), use)
    layer, x = protected(model.layer), torch.randn(5, *shape).double()
    expected = one_by_one(layer, lambda x: (model(x) + 1).square().sum() / len(x), x)
    (uses,) = uses_of([layer], lambda: (model(x) + 1).square().sum() / len(x), 5).values()
    assert all(use.is_clear() for use in uses)
    assert torch.allclose(sample_gradients(uses, slice(0, 5)), expected, rtol=1e-10, atol=1e-12)
    assert torch.allclose(sum_of_squares(uses), expected.square().sum(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in LAYERS if not case.batched])
def test_a_layer_called_with_a_single_sample_cannot_tell_the_samples_of_a_batch(case: LayerCase) -> None:
    module, x = case.layer(), case.input()
    (uses,) = uses_of([protected(module)], lambda: module(x).square().sum(), len(x)).values()
    assert not uses[0].is_clear()


def test_inputs_that_do_not_divide_into_the_samples_are_not_clear() -> None:
    module, x = nn.Linear(4, 2), torch.randn(7, 4)
    (uses,) = uses_of([protected(module)], lambda: module(x).sum(), 5).values()
    assert not uses[0].is_clear()


def test_layers_that_the_loss_does_not_reach_have_no_uses_and_no_hook_is_left() -> None:
    reached, idle, past = (nn.Linear(3, 3) for _ in range(3))
    modules = {"reached": reached, "idle": idle, "past": past}
    layers = [ProtectedLayer(name, [module], protected(module).rule) for name, module in modules.items()]
    x = torch.randn(2, 3)

    def loss() -> Tensor:
        past(x)
        return reached(x).sum()

    assert uses_of(layers, loss, 2).keys() == {"reached"}
    with torch.no_grad():
        assert uses_of(layers, loss, 2) == {}
    with pytest.raises(KeyError):
        uses_of(layers, lambda: {}["loss"], 2)
    assert not any(module._forward_hooks for module in modules.values())


def test_squares_of_small_numbers_are_taken_in_full_precision() -> None:
    module = nn.Linear(2, 2, bias=False).half()
    x = torch.full((4, 2), 1e-3).half()
    (uses,) = uses_of([protected(module)], lambda: module(x).sum() / 4, 4).values()
    squares = sum_of_squares(uses)
    assert squares.dtype == torch.float32
    assert torch.allclose(squares, torch.full((2, 2), 4e-6), rtol=1e-2)
