"""Where gates belong, and which of them stand behind what a layer reads: found by looking, whatever lies between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber import HAT
from tests.loops import learn, logits, loss_fn
from tests.models import CASES, ResidualBlock


def attention_behind(model: nn.Module, shape: tuple[int, ...], *, norm_statistics: str = "task") -> Any:
    """A learner after one task, whose embeddings were drawn and never trained: half of the gates are open."""
    learner = HAT(model, smax=8.0, norm_statistics=norm_statistics)
    loader = [(torch.randn(4, *shape), torch.randint(3, (4,)))] * 2
    learner.begin_task(loader, loss_fn)
    learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
    learner.end_task(loader)
    return learner


class Between(nn.Module):
    """Two convolutions, something in between, and a last layer."""

    def __init__(self, between: Callable[[Tensor, Tensor, Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, 3, padding=1)
        self.between = between
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.one(x), self.two(x), x))


def repeated(values: Tensor, times: int) -> Tensor:
    return values.repeat_interleave(times)


ONES = torch.ones
# What lies between, the last layer's width, and what is to be found of the attention to the two.
WAYS: dict[str, tuple[Any, int, Any]] = {
    "flatten": (lambda a, b, x: a.relu().flatten(1), 48, lambda a, b: repeated(a, 16)),
    "maximum": (lambda a, b, x: functional.max_pool2d(a.relu(), 2).flatten(1), 12, lambda a, b: repeated(a, 4)),
    "mean": (lambda a, b, x: a.relu().mean((2, 3)), 3, lambda a, b: a),
    "sum": (lambda a, b, x: (a + b).relu().mean((2, 3)), 3, torch.maximum),
    "difference": (lambda a, b, x: (a - b).relu().mean((2, 3)), 3, torch.maximum),
    "product": (lambda a, b, x: (a * b).mean((2, 3)), 3, None),
    "side by side": (lambda a, b, x: torch.cat([a, b], 1).mean((2, 3)), 6, lambda a, b: torch.cat([a, b])),
    "turned round": (lambda a, b, x: a.flip(1).mean((2, 3)), 3, lambda a, b: a.flip(0)),
    "part of it": (lambda a, b, x: a[:, 1:].mean((2, 3)), 2, lambda a, b: a[1:]),
    "shrunk": (lambda a, b, x: 0.01 * a.tanh().mean((2, 3)), 3, lambda a, b: a),
    "a ReLU of one's own": (lambda a, b, x: torch.where(a > 0, a, 0.0).mean((2, 3)), 3, lambda a, b: a),
    "never 0": (lambda a, b, x: a.sigmoid().mean((2, 3)), 3, lambda a, b: ONES(3)),
    "mixed": (lambda a, b, x: functional.layer_norm(a.mean((2, 3)), (3,)), 3, lambda a, b: a.max() * ONES(3)),
    "shortcut from the input": (lambda a, b, x: (a + x[:, :1]).mean((2, 3)), 3, lambda a, b: ONES(3)),
    "cleaned input": (
        lambda a, b, x: a.mean((2, 3)) + x.nan_to_num().mean((1, 2, 3))[:, None],
        3,
        lambda a, b: ONES(3),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_units_are_found_behind_whatever_lies_between(way: str) -> None:
    between, width, expected = WAYS[way]
    torch.manual_seed(1)
    learner = attention_behind(Between(between, width), (2, 4, 4))
    a, b = learner.units["one"], learner.units["two"]
    assert len(torch.cat([a, b]).unique()) == 6
    found = learner.inputs["last"]
    if expected is None:  # one closed gate closes the product, so the smaller of both is what counts
        assert (found[:-1] >= torch.minimum(a, b) - 1e-7).all()
    else:
        assert torch.allclose(found[:-1], expected(a, b))
    assert found[-1] == 1, "the bias is always read"
    assert torch.equal(learner.inputs["one"], torch.ones(19)), "the model's own inputs have no gate"
    assert torch.equal(learner.units["last"], torch.ones(3)), "nor has its output"


def test_pixels_that_are_0_in_all_samples_looked_at_are_inputs_all_the_same() -> None:
    torch.manual_seed(0)
    learner = HAT(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)))
    loader = [(torch.zeros(4, 4), torch.randint(3, (4,)))] * 2
    learn(learner, loader)
    assert torch.equal(learner.inputs["0"], torch.ones(5))


def test_a_convolution_behind_one_reads_its_channels_over_the_whole_kernel() -> None:
    torch.manual_seed(0)
    learner = attention_behind(CASES["cnn"].model(), (2, 6, 6))
    assert torch.allclose(learner.inputs["3"][:-1], repeated(learner.units["0"], 4))
    assert torch.allclose(learner.inputs["6"][:-1], repeated(learner.units["3"], 4))


@pytest.mark.parametrize("statistics", ["task", "batch"])
def test_a_gate_sits_behind_the_normalization_that_would_undo_it(statistics: str) -> None:
    torch.manual_seed(0)
    learner = attention_behind(ResidualBlock(), (2, 5, 5), norm_statistics=statistics)
    assert learner.gated_modules == {"conv1": ["norm1"], "conv2": ["norm2"], "shortcut": ["shortcut"]}
    units = learner.units
    assert torch.allclose(learner.inputs["conv2"], repeated(units["conv1"], 9))
    assert torch.allclose(learner.inputs["head"][:-1], torch.maximum(units["conv2"], units["shortcut"]))
    seen: list[Tensor] = []
    learner.model.norm1.register_forward_hook(lambda module, x, y: seen.append(y))
    bare = logits(learner, None, x := torch.randn(6, 2, 5, 5))
    gated = logits(learner, 0, x)
    assert torch.allclose(seen[1], seen[0] * units["conv1"][:, None, None], atol=1e-5)
    assert not torch.allclose(bare, gated)


class Odd(nn.Module):
    """A normalization behind a layer, but not only, or not of the layer's units."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 3)
        self.norm = nn.LayerNorm(5) if how == "mixes" else nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x.unsqueeze(1).repeat(1, 5, 1) if self.how == "of other units" else x)
        if self.how == "after a ReLU":
            return self.last(self.norm(y.relu()))
        if self.how == "twice":
            return self.last(self.norm(self.first(self.norm(y).relu())))
        z = self.norm(y)
        return self.last(z + y if self.how == "beside itself" else z.mean(1) if z.dim() > 2 else z)


PLACES = {
    "plain": "norm",
    "twice": "norm",
    "mixes": "first",
    "of other units": "first",
    "after a ReLU": "first",
    "beside itself": "first",
}


@pytest.mark.parametrize("how", PLACES)
def test_and_nowhere_else(how: str) -> None:
    torch.manual_seed(0)
    model: Any = Odd(how)
    if how != "mixes":
        model.norm.running_mean += 0.1  # as after any training: what it puts out is not 0 where 0 comes in
    learner = attention_behind(model, (5,))
    assert learner.gated_modules == {"first": [PLACES[how]]}
    if how in ("of other units", "after a ReLU", "beside itself"):
        assert torch.equal(learner.inputs["last"], torch.ones(6))


def test_a_model_that_will_not_compute_with_marks_counts_as_reading_all_there_is() -> None:
    class Strict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x).relu()
            if not bool(y.isfinite().all()):
                raise ValueError("not with me")
            return self.last(y)

    torch.manual_seed(0)
    learner = attention_behind(Strict(), (4,))
    assert torch.allclose(learner.inputs["last"][:-1], learner.units["first"].max() * torch.ones(5))


def test_looking_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    learner = attention_behind(ResidualBlock(), (2, 5, 5))
    for module in learner.model.modules():
        assert all(type(hook).__name__ == "Gate" for hook in module._forward_hooks.values())
        assert all(
            type(getattr(h, "__self__", None)).__name__ == "Attached" for h in module._forward_pre_hooks.values()
        )
    assert all(gate.forced is None for gate in learner.gates.values())
    assert all(buffer.isfinite().all() for buffer in learner.model.buffers())
