"""The paper's networks: layers and parameters counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cuber import MultiHead
from cuber.errors import CuberError
from cuber.networks import AlexNet5, ReducedResNet18


def count(model: nn.Module, kind: type[nn.Module] | tuple[type[nn.Module], ...] = nn.Module) -> int:
    return sum(p.numel() for m in model.modules() if isinstance(m, kind) for p in m.parameters(recurse=False))


def no_bias(model: nn.Module) -> bool:
    return all(layer.bias is None for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear))


def test_alexnet() -> None:
    network = AlexNet5()
    convolutions = 3 * 64 * 4 * 4 + 64 * 128 * 3 * 3 + 128 * 256 * 2 * 2
    linear = 1024 * 2048 + 2048 * 2048  # 32 -> 29 -> 14 -> 12 -> 6 -> 5 -> 2 pixels a side, 256 of those
    normalization = 2 * (64 + 128 + 256 + 2048 + 2048)
    assert count(network, nn.Conv2d) == convolutions
    assert count(network, nn.Linear) == linear
    assert count(network) == convolutions + linear + normalization == 6_508_416
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.2, 0.2, 0.5, 0.5, 0.5]
    assert no_bias(network)
    model = MultiHead(network, AlexNet5.features, [10] * 10, bias=False)
    assert count(model) == 6_508_416 + 10 * 10 * 2048
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(("side", "stride", "features"), [(32, 1, 640), (84, 2, 1440)])
def test_resnet(side: int, stride: int, features: int) -> None:
    network = ReducedResNet18(side=side, first_stride=stride)
    stages = [
        4 * 20 * 20 * 9,
        20 * 40 * 9 + 3 * 40 * 40 * 9 + 20 * 40,
        40 * 80 * 9 + 3 * 80 * 80 * 9 + 40 * 80,
        80 * 160 * 9 + 3 * 160 * 160 * 9 + 80 * 160,
    ]
    convolutions = 3 * 20 * 9 + sum(stages)
    normalization = 2 * (5 * 20 + 5 * 40 + 5 * 80 + 5 * 160)  # the first, then four or, with a shortcut, five a stage
    assert count(network, nn.Conv2d) == convolutions
    assert count(network) == convolutions + normalization == 1_093_140
    assert len([m for m in network.modules() if isinstance(m, nn.Conv2d)]) == 17 + 3
    assert no_bias(network)
    model = MultiHead(network, network.features, [5] * 20, bias=False)
    assert network.features == features
    assert model(torch.randn(2, 3, side, side)).shape == (2, 5)


def test_input_vectors_of_the_last_stage_are_the_papers_1440() -> None:
    last = [m for m in ReducedResNet18().modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)][-1]
    assert last.weight.flatten(1).shape == (160, 1440)


def test_images_that_are_too_small() -> None:
    AlexNet5(side=19)
    with pytest.raises(CuberError, match="at least 19x19"):
        AlexNet5(side=18)
    for stride, side in ((1, 9), (2, 17)):
        ReducedResNet18(side=side, first_stride=stride)
        with pytest.raises(CuberError, match=f"at least {side}x{side}"):
            ReducedResNet18(side=side - 1, first_stride=stride)
