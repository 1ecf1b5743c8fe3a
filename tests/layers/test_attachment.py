"""A module while its layer is protected: the same object, observed only on request, and restored by detaching."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from cuber.layers import ProtectedLayer, observed
from cuber.subspace import Scaling
from tests.layers.table import protected


def attached(module: nn.Module, *, fused: bool = False) -> ProtectedLayer:
    layer = protected(module)
    layer.attach(fused=fused)
    return layer


@pytest.mark.parametrize("fused", [True, False])
def test_attaching_and_detaching_leaves_no_trace(fused: bool) -> None:
    module = nn.Linear(3, 2)
    before = dict(module.__dict__), dict(module._forward_pre_hooks)
    layer = attached(module, fused=fused)
    assert module.__dict__ != before[0]
    layer.detach()
    assert (module.__dict__, dict(module._forward_pre_hooks)) == before


@pytest.mark.parametrize("fused", [True, False])
def test_attaching_twice_is_attaching_once(fused: bool) -> None:
    module = nn.Linear(3, 2)
    attached(module, fused=fused)
    attached(module, fused=fused)
    assert len(module._forward_pre_hooks) == fused


def test_hooks_of_others_are_left_alone() -> None:
    module = nn.Linear(3, 2)
    calls: list[str] = []
    module.register_forward_pre_hook(lambda *_: calls.append("before"))
    module.register_forward_hook(lambda *_: calls.append("after"))
    layer = attached(module)
    module(torch.randn(1, 3))
    layer.detach()
    module(torch.randn(1, 3))
    assert calls == ["before", "after"] * 2


def test_an_observer_sees_every_input_and_only_while_it_observes() -> None:
    module = nn.Linear(3, 2)
    layer = attached(module)
    seen: list[Tensor] = []
    x = torch.randn(4, 3, requires_grad=True)
    module(x)
    with observed([layer], lambda observed_layer, observed_module, inputs: seen.append(inputs)):
        module(x)
        module(2 * x)
    module(x)
    assert [len(inputs) for inputs in seen] == [4, 4]
    assert torch.equal(seen[1], 2 * x)
    assert seen[0] is x, "with its graph, which says whether trained parameters have computed it"


def test_an_error_while_observing_ends_the_observation() -> None:
    module = nn.Linear(3, 2)
    layer = attached(module)
    with pytest.raises(RuntimeError), observed([layer], lambda *_: None):
        module(torch.randn(1, 5))
    assert layer.observer is None


def test_a_layer_may_be_called_with_its_input_by_name() -> None:
    module = nn.Linear(3, 2)
    layer = attached(module)
    seen: list[Tensor] = []
    x = torch.randn(4, 3)
    with observed([layer], lambda observed_layer, observed_module, inputs: seen.append(inputs)):
        assert torch.equal(module(input=x), module(x))
    assert len(seen) == 2


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_computes_the_same_and_has_scalings_of_its_own(duplicate: object) -> None:
    module = nn.Linear(4, 3)
    layer = attached(module)
    layer.scaling = Scaling(torch.eye(5)[:, :2], torch.ones(1, 2, dtype=torch.bool), [], like=layer.parameter)
    layer.scaling.matrix.data = torch.randn(2, 2)
    x = torch.randn(7, 4)
    twin = duplicate(module)  # type: ignore[operator]
    assert torch.equal(twin(x), module(x))
    with torch.no_grad():
        twin.weight.zero_()
        layer.scaling.matrix.zero_()
    assert torch.equal(module(x), type(module).forward(module, x))
    assert torch.allclose(twin(x), twin.bias.expand(7, 3))


def test_a_gradient_goes_to_weight_and_bias_and_missing_ones_count_as_0() -> None:
    module = nn.Linear(3, 2)
    layer = protected(module)
    assert not layer.gradient().any()
    matrix = torch.randn(2, 4)
    layer.set_gradient(matrix)
    kept = module.weight.grad
    assert torch.equal(layer.gradient(), matrix)
    layer.set_gradient(2 * matrix)
    assert module.weight.grad is kept
    assert torch.equal(torch.cat([module.weight.grad, module.bias.grad.unsqueeze(1)], 1), 2 * matrix)
