"""The table of small models that the laws are tried on, each with inputs of its own kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import MultiHead
from cuber.networks import MLP

Loader = list[tuple[Tensor, Tensor]]
CLASSES = 3


class Pooled(nn.Module):
    """A sequence model, the mean over its positions, and a head."""

    def __init__(self, *parts: nn.Module, width: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.parts(x).mean(1))


class ResidualBlock(nn.Module):
    """conv-norm-relu-conv-norm beside a 1x1 shortcut, then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(6)
        self.shortcut = nn.Conv2d(2, 6, 1, bias=False)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.conv1(x)).relu()
        y = (self.norm2(self.conv2(y)) + self.shortcut(x)).relu()
        return self.head(y.mean((2, 3)))


class Twice(nn.Module):
    """One layer that every sample passes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 10)
        self.again = nn.Linear(10, 10)
        self.last = nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last(self.again(self.again(x).relu()).relu())


class Tied(nn.Module):
    """Two layers with one weight between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).relu()).relu())


class Bilinear(nn.Module):
    """Two views of a sample, multiplied with each other, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 5), nn.Linear(8, 4)
        self.product = nn.Bilinear(5, 4, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.product(self.one(x).relu(), self.other(x).relu()).relu())


class Recurrent(nn.Module):
    """A network of two directions, and a head on its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.LSTM(4, 3, bidirectional=True, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.network(x)[0][:, -1])


def encoder_layer(dropout: float = 0.1) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(5, 6, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    )


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding="valid", groups=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 6, 2, dilation=2, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding="same", groups=6),
        nn.Flatten(),
        nn.Linear(54, CLASSES),
    )


def transposed() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.ReLU(),
        nn.Conv2d(6, 3, 2, stride=2),
        nn.Flatten(),
        nn.Linear(27, CLASSES),
    )


def one_dimensional() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 6, 4, stride=2, padding=1), nn.ReLU(), nn.Conv1d(6, 4, 2), nn.Flatten(), nn.Linear(16, CLASSES)
    )


def three_dimensional() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 5, 2, stride=(1, 2, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(90, CLASSES))


@dataclass(frozen=True)
class Case:
    """A model and what it eats."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    vocabulary: int = 0
    """More than 0: inputs are words of this many kinds."""

    def model(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
        torch.manual_seed(seed)
        return self.build().to(dtype)

    def inputs(self, seed: int, samples: int, dtype: torch.dtype = torch.float32) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if self.vocabulary:
            return torch.randint(self.vocabulary, (samples, *self.shape), generator=generator)
        return torch.randn(samples, *self.shape, generator=generator, dtype=torch.float64).to(dtype)

    def loader(self, task: int, samples: int = 24, batch_size: int = 8, dtype: torch.dtype = torch.float32) -> Loader:
        """The training data of a task, batch by batch, the same every time it is asked for."""
        x = self.inputs(100 + task, samples, dtype)
        y = torch.randint(CLASSES, (samples,), generator=torch.Generator().manual_seed(200 + task))
        return list(zip(x.split(batch_size), y.split(batch_size), strict=True))


CASES = {
    case.name: case
    for case in [
        Case("mlp", lambda: MLP(8, 12, 10, CLASSES, bias=True), (8,)),
        Case("mlp without bias", lambda: MLP(8, 12, 10, CLASSES), (8,)),
        Case("cnn", convolutional, (2, 6, 6)),
        Case("grouped strided dilated cnn", grouped, (4, 7, 7)),
        Case("conv1d", one_dimensional, (3, 10)),
        Case("conv3d", three_dimensional, (1, 4, 4, 4)),
        Case("transformer", lambda: Pooled(encoder_layer(), width=8), (5, 8)),
        Case("transformer on words", lambda: Pooled(nn.Embedding(7, 8), encoder_layer(), width=8), (5,), 7),
        Case("recurrent", Recurrent, (4, 4)),
        Case("bilinear", Bilinear, (8,)),
        Case("transposed cnn", transposed, (4, 3, 3)),
        Case("residual block", ResidualBlock, (2, 5, 5)),
        Case("layer used twice", Twice, (8,)),
        Case("tied layers", Tied, (8,)),
        Case("many heads", lambda: MultiHead(MLP(8, 12, 10, bias=True, last_relu=True), 10, [CLASSES] * 4), (8,)),
    ]
}


def cases(*, but: frozenset[str] = frozenset()) -> list[Any]:
    """The table as pytest parameters, without some."""
    return [pytest.param(case, id=name) for name, case in CASES.items() if name not in but]
