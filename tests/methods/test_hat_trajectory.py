"""HAT and the oracle of plain loops go the same way, step by step, for three tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import HAT, MultiHead
from cuber.networks import MLP
from tests.loops import loss_fn
from tests.models import Loader
from tests.oracles.hat import SlowConvolutional, SlowHAT, SlowResidual

LR, EPOCHS, TASKS = 0.2, 3, 3


class Shortcut(nn.Module):
    """A layer beside a shortcut around it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last(x + self.second(x).relu())


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))


@dataclass(frozen=True)
class Pair:
    """A network, and the oracle that is written for its form."""

    build: Any
    oracle: type[SlowHAT] = SlowHAT
    shape: tuple[int, ...] = (8,)
    settings: Any = ()


PAIRS = {
    "mlp": Pair(lambda: MLP(8, 7, 6, 3, bias=True)),
    "mlp without bias, no regularizer": Pair(lambda: MLP(8, 7, 6, 3), settings=(("c", 0.0),)),
    "mlp, soft gates": Pair(lambda: MLP(8, 7, 6, 3, bias=True), settings=(("smax", 3.0), ("c", 2.0))),
    "heads": Pair(lambda: MultiHead(MLP(8, 7, 6, bias=True, last_relu=True), 6, [3] * TASKS)),
    "heads, soft gates": Pair(
        lambda: MultiHead(MLP(8, 7, 6, last_relu=True), 6, [3] * TASKS), settings=(("smax", 5.0),)
    ),
    "convolution": Pair(convolutional, SlowConvolutional, (2, 4, 4)),
    "convolution, soft gates": Pair(convolutional, SlowConvolutional, (2, 4, 4), (("smax", 4.0),)),
    "shortcut": Pair(Shortcut, SlowResidual),
    "shortcut, soft gates": Pair(Shortcut, SlowResidual, settings=(("smax", 4.0),)),
}


def loader_of(task: int, shape: tuple[int, ...], seed: int) -> Loader:
    generator = torch.Generator().manual_seed(100 * seed + task)
    x = 1.5 * torch.randn(20, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (20,), generator=generator)
    return list(zip(x.split(3), y.split(3), strict=True))


def slow_twin(pair: Pair, learner: HAT, settings: dict[str, float]) -> SlowHAT:
    layers = learner.layers.values()
    heads: Any = getattr(learner.model, "heads", [])
    return pair.oracle(
        weights=[layer.parameter.detach().clone() for layer in layers],
        biases=[None if layer.bias is None else layer.bias.detach().clone() for layer in layers],
        heads=[(head.weight.detach().clone(), head.bias.detach().clone()) for head in heads],
        steps_per_epoch=7,
        lr=LR,
        **settings,
    )


def ours(learner: HAT, task: int) -> dict[str, nn.Parameter]:
    """What is trained, by the names that the oracle gives it."""
    layers = list(learner.layers.values())
    tensors = {f"weight {position}": layer.parameter for position, layer in enumerate(layers)}
    tensors |= {f"bias {position}": layer.bias for position, layer in enumerate(layers) if layer.bias is not None}
    embeddings = [p for name, p in learner.named_parameters() if name.endswith(".attention")]
    tensors |= {f"embedding {position}": embedding for position, embedding in enumerate(embeddings)}
    if isinstance(learner.model, MultiHead):
        head: Any = learner.model.heads[task]
        tensors |= {"head": head.weight, "head bias": head.bias}
    return tensors


@pytest.mark.parametrize(("name", "seed"), [*((name, 0) for name in PAIRS), ("mlp", 1)])
def test_hat_goes_where_the_oracle_goes(name: str, seed: int) -> None:
    pair = PAIRS[name]
    settings = {"smax": 40.0, "c": 0.75} | dict(pair.settings)
    torch.manual_seed(seed)
    model = pair.build().double()
    learner = HAT(model, **settings)
    slow = slow_twin(pair, learner, settings)
    moved = 0
    for task in range(TASKS):
        loader = loader_of(task, pair.shape, seed)
        learner.begin_task(loader, loss_fn)
        trained = ours(learner, task)
        slow.begin_task([p for key, p in trained.items() if key.startswith("embedding")])
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=LR))
        for _ in range(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                assert loss.item() == pytest.approx(slow.step((x, y)), rel=1e-8)
                for key, theirs in slow.trained().items():
                    gradient = trained[key].grad
                    assert gradient is not None
                    assert torch.allclose(gradient, slow.gradients[key], rtol=1e-6, atol=1e-9), key
                    assert torch.allclose(trained[key], theirs, rtol=1e-7, atol=1e-8), key
                moved += bool(task) and bool(slow.gradients["weight 1"].abs().max() > 1e-4)
            learner.end_epoch()
            slow.end_epoch()
        learner.end_task(loader)
    assert moved > 5, "old tasks had taken everything, so nothing is shown"
    x = torch.randn(9, *pair.shape, dtype=torch.float64)
    model.eval()
    for task in range(TASKS):
        with torch.no_grad(), learner.as_task(task):
            assert torch.allclose(model(x), slow.logits(x, task, slow.smax), rtol=1e-7, atol=1e-8)
