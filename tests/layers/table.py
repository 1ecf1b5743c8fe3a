"""Every layer type with every option, and an input that it takes: whole numbers, so that all sums are exact."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber.layers import ProtectedLayer
from cuber.layers.rule import rule_for


@dataclass(frozen=True)
class LayerCase:
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batched: bool = True

    def layer(self) -> Any:
        module = self.build().double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randint(-4, 5, parameter.shape))
        return module

    def input(self) -> Tensor:
        return torch.randint(-4, 5, self.shape).double()


def protected(module: nn.Module, backend: str = "fast") -> ProtectedLayer:
    rule = rule_for(module)
    assert rule is not None
    layer = ProtectedLayer("layer", [module], rule)
    layer.use_backend(backend)
    return layer


def _convolutions() -> list[LayerCase]:
    made = []
    for n, kind in ((1, nn.Conv1d), (2, nn.Conv2d), (3, nn.Conv3d)):
        shape = (2, 4, *(6, 5, 5)[:n])

        def case(
            name: str, shape: tuple[int, ...] = shape, kind: Any = kind, n: int = n, kernel: Any = 3, **options: Any
        ) -> None:
            batched = len(shape) == n + 2
            made.append(LayerCase(f"Conv{n}d {name}", lambda: kind(4, 8, kernel, **options), shape, batched))

        case("plain")
        case("without bias", bias=False)
        case("kernel of 1", kernel=1)
        case("unequal kernel", kernel=(3, 2, 1)[:n])
        case("stride", stride=2)
        case("unequal stride", stride=(2, 1, 3)[:n])
        case("padding", padding=1)
        case("unequal padding", padding=(2, 0, 1)[:n])
        case("padding valid", padding="valid")
        case("padding same", padding="same")
        case("padding same, even kernel", kernel=2, padding="same")
        case("padding same, dilated", kernel=(2, 3, 2)[:n], padding="same", dilation=2)
        case("dilation", dilation=2)
        case("unequal dilation", kernel=2, dilation=(3, 1, 2)[:n])
        case("groups", groups=2)
        case("depthwise", groups=4, kernel=2, bias=False)
        case("unbatched", shape=shape[1:])
        case("unbatched groups and padding", shape=shape[1:], groups=2, padding=1, padding_mode="circular")
        for mode in ("reflect", "replicate", "circular"):
            case(f"padding mode {mode}", padding=(2, 1, 1)[:n], padding_mode=mode)
            case(f"padding mode {mode}, same", kernel=2, padding="same", padding_mode=mode)
        case("all at once", groups=2, stride=2, dilation=2, kernel=2, padding=(2, 1, 1)[:n], padding_mode="reflect")
    return made


def _transposed() -> list[LayerCase]:
    made = []
    for n, kind in ((1, nn.ConvTranspose1d), (2, nn.ConvTranspose2d), (3, nn.ConvTranspose3d)):
        shape = (2, 4, *(5, 4, 3)[:n])

        def case(
            name: str, shape: tuple[int, ...] = shape, kind: Any = kind, n: int = n, kernel: Any = 3, **options: Any
        ) -> None:
            batched = len(shape) == n + 2
            made.append(LayerCase(f"ConvTranspose{n}d {name}", lambda: kind(4, 6, kernel, **options), shape, batched))

        case("plain")
        case("without bias", bias=False)
        case("unequal kernel and stride", kernel=(3, 2, 1)[:n], stride=(2, 1, 3)[:n])
        case("padding", padding=1)
        case("padding wider than the kernel", kernel=2, padding=2, dilation=1, stride=3)
        case("output padding", stride=3, output_padding=(2, 1, 0)[:n])
        case("dilation", dilation=2)
        case("groups", groups=2)
        case("unbatched", shape=shape[1:], groups=2, stride=2)
        options = {"output_padding": (1, 0, 1)[:n], "padding": (2, 1, 1)[:n]}
        case("all at once", groups=2, stride=2, dilation=(2, 1, 3)[:n], kernel=(2, 3, 2)[:n], **options)
    return made


class Conv1D(nn.Module):
    """As in Hugging Face's transformers, which has it under another name; see ``LAYERS``."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.out_features = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.out_features)


Conv1D.__module__ = "transformers.pytorch_utils"  # found by its full name, whether transformers is there or not


LAYERS = [
    LayerCase("Linear", lambda: nn.Linear(5, 3), (4, 5)),
    LayerCase("Linear without bias", lambda: nn.Linear(5, 3, bias=False), (4, 5)),
    LayerCase("Linear on one vector", lambda: nn.Linear(5, 3), (5,), batched=False),
    LayerCase("Linear on a sequence", lambda: nn.Linear(5, 3), (4, 6, 5)),
    LayerCase("Linear on many leading dimensions", lambda: nn.Linear(5, 3), (2, 3, 2, 2, 5)),
    LayerCase("Conv1D of transformers", lambda: Conv1D(3, 5), (4, 5)),
    LayerCase("Conv1D of transformers on few sequences", lambda: Conv1D(12, 5), (2, 3, 5)),
    *_convolutions(),
    *_transposed(),
]

layers = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in LAYERS])
convolutions = pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in LAYERS if re.match(r"Conv\dd", case.name)]
)


def output_rows(case: LayerCase, module: Any, output: Tensor) -> list[Tensor]:
    """The output as one matrix per group, m x (outputs of the group), its rows in the order of the input vectors."""
    if isinstance(module, nn.Linear | Conv1D):
        return [output.reshape(-1, module.out_features)]
    if not case.batched:
        output = output.unsqueeze(0)
    by_group = output.unflatten(1, (module.groups, -1))
    return [by_group[:, group].flatten(2).transpose(1, 2).flatten(0, 1) for group in range(module.groups)]


def vector_rows(case: LayerCase, module: Any, vectors: Tensor) -> list[Tensor]:
    """The input vectors, one matrix per group, in the same order."""
    groups = getattr(module, "groups", 1)
    samples = case.shape[0] if case.batched and groups > 1 else 1
    by_group = vectors.reshape(samples, groups, -1, vectors.shape[1])
    return [by_group[:, group].flatten(0, 1) for group in range(groups)]
