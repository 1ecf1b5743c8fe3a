"""Running statistics can be taken, put back and estimated; or each batch has its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cuber.layers import Normalization, constant_statistics, evaluation_mode, normalized_by_batch


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3), nn.BatchNorm1d(3, momentum=None, affine=False)
    )


def test_statistics_are_a_copy_and_restoring_them_puts_every_bit_back() -> None:
    model = network()
    normalization = Normalization(model, "task")
    model(torch.randn(9, 4))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    kept = normalization.statistics()
    model(3 + torch.randn(9, 4))
    assert kept.keys() == before.keys()
    assert all(torch.equal(kept[name], before[name]) for name in before)
    normalization.restore(kept)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    model(3 + torch.randn(9, 4))
    assert all(torch.equal(kept[name], before[name]) for name in before), "the copy moved with the model"


def test_estimated_statistics_are_those_of_the_batches_seen_and_nothing_else_changes() -> None:
    layer = nn.BatchNorm1d(3, momentum=0.3).eval()
    layer(torch.randn(5, 3))
    normalization = Normalization(nn.Sequential(layer), "task")
    batches = [2 + torch.randn(20, 3), 5 * torch.randn(20, 3)]
    with normalization.estimating([layer]):
        for batch in batches:
            layer(batch)
    assert torch.allclose(layer.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0), atol=1e-6)
    assert torch.allclose(layer.running_var, torch.stack([b.var(0) for b in batches]).mean(0), rtol=1e-5)
    assert (layer.momentum, layer.training) == (0.3, False)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.BatchNorm1d(4), (6, 4)), (nn.BatchNorm2d(4), (6, 4, 3, 3)), (nn.BatchNorm3d(4), (6, 4, 2, 2, 2))],
    ids=["1d", "2d", "3d"],
)
def test_with_statistics_of_the_batch_training_and_evaluation_are_the_same(norm: nn.Module, shape: tuple) -> None:
    model = nn.Sequential(norm)
    x = torch.randn(shape)
    norm.train()
    expected = norm(x)
    mean = norm.running_mean.clone()  # type: ignore[operator, union-attr]
    normalization = Normalization(model, "batch")
    for training in (True, False):
        model.train(training)
        assert torch.equal(model(x), expected)
    assert torch.equal(norm.running_mean, mean), "the paper's way keeps no statistics"  # type: ignore[arg-type]
    assert normalization.statistics() == {}
    normalization.detach()
    assert "forward" not in norm.__dict__
    assert not torch.equal(norm.eval()(x), expected)


def test_layers_without_running_statistics_are_left_alone() -> None:
    model = nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.BatchNorm1d(3, track_running_stats=False))
    assert Normalization(model, "task").statistics() == {}
    Normalization(model, "batch")
    assert not any("forward" in module.__dict__ for module in model)


def test_evaluation_mode_gives_every_module_back_the_mode_it_had() -> None:
    model = network()
    model[1].eval()
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model] == [True, False, True, True, True]
    with pytest.raises(RuntimeError), evaluation_mode(model):
        raise RuntimeError
    assert model.training


def test_constant_statistics_are_those_of_the_batch_and_have_no_gradient() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, affine=False, track_running_stats=False)).eval()
    Normalization(model, "batch")
    layers = normalized_by_batch(model)
    assert layers == list(model)
    x = 2 + 3 * torch.randn(5, 3, 4, 4)
    expected = model(x)
    forwards = [module.__dict__.get("forward") for module in model]
    with constant_statistics(layers, lambda: model(x)):
        assert torch.allclose(model(x), expected, atol=1e-5)
        assert torch.allclose(model(x[:1]), expected[:1], atol=1e-5), "a sample alone is normalized as in its batch"
        one = x[:1].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(one).sum(), one)
    assert float(slope.abs().min()) > 0.1, "the gradient through the mean would make this 0"
    assert [module.__dict__.get("forward") for module in model] == forwards
    with pytest.raises(KeyError), constant_statistics(layers, lambda: model(x)):
        raise KeyError
    with pytest.raises(RuntimeError), constant_statistics(layers, lambda: model(x[:, :2])):
        raise AssertionError("the batch cannot pass")
    assert [module.__dict__.get("forward") for module in model] == forwards
    assert not any(module._forward_pre_hooks for module in model)


def test_a_layer_used_twice_has_constant_statistics_for_each_use() -> None:
    layer = nn.BatchNorm1d(3, track_running_stats=False)
    x = torch.randn(6, 3)

    def twice(x: torch.Tensor) -> torch.Tensor:
        return layer(3 * layer(x).relu())

    expected = twice(x)
    with constant_statistics(normalized_by_batch(layer), lambda: twice(x)):
        for part in (x, x[:2], x[2:]):
            rows = slice(2, None) if len(part) == 4 else slice(len(part))
            assert torch.allclose(twice(part), expected[rows], atol=1e-5)


def test_layers_with_running_statistics_need_no_constants() -> None:
    model = network()
    Normalization(model, "task")
    assert normalized_by_batch(model) == []
    with constant_statistics([], lambda: pytest.fail("nothing is to be measured")):
        pass
