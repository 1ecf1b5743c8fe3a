"""Weights that training computes anew, as spectral_norm does, stay as they are while the learner has them frozen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, spectral_norm

from cuber import CUBER, GPM, HAT, MultiHead, SoftCUBER
from tests.loops import detach, learn, logits, loss_fn, same_bits, train


class Growing(nn.Module):
    """Computes another weight after each pass in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, original: Tensor) -> Tensor:
        self.count += self.training
        return original * (1 + 0.1 * self.count)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "spectral norm": parametrizations.spectral_norm,
    "old spectral norm": spectral_norm,
    "growing": lambda module: parametrize.register_parametrization(module, "weight", Growing()),
}
FAMILY: dict[str, Any] = {
    "GPM": lambda model: GPM(model, threshold=1.0),
    "CUBER": lambda model: CUBER(model, threshold=1.0, eps1=2.0),
    "SoftCUBER": lambda model: SoftCUBER(model, eps1=2.0, lam=1e-6, curvature=1e9),
    "HAT": HAT,
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def network(way: Callable[[nn.Module], nn.Module]) -> MultiHead:
    torch.manual_seed(0)
    return MultiHead(nn.Sequential(way(nn.Linear(8, 6)), nn.Tanh(), nn.Linear(6, 6), nn.Tanh()), 6, [3, 3])


def loader(task: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    x, y = torch.randn(16, 8, generator=generator), torch.randint(3, (16,), generator=generator)
    return list(zip(x.split(8), y.split(8), strict=True))


def changes(model: nn.Module) -> bool:
    """Whether a pass in training changes a buffer."""
    before = copy.deepcopy(dict(model.named_buffers()))
    model.train()(loader(0)[0][0])
    return any(not torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


@ways
@pytest.mark.parametrize("make", FAMILY.values(), ids=FAMILY.keys())
def test_old_outputs_do_not_change_by_what_training_computes(make: Any, way: Any) -> None:
    learner, x = make(network(way)), loader(0)[0][0]
    learn(learner, loader(0), lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    if isinstance(learner, HAT):
        for embedding in learner.embeddings[0].values():
            embedding.fill_(6.0)  # all units are needed
        for largest in (learner.units, learner.inputs):
            largest.update({name: torch.ones_like(values) for name, values in largest.items()})
    before = logits(learner, 0, x)
    learner.begin_task(loader(1), loss_fn)
    learner.model.eval().train()  # as loops do for each evaluation
    train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.05)), loader(1), epochs=5)
    learner.end_task(loader(1))
    assert torch.allclose(logits(learner, 0, x), before, atol=1e-5)


@ways
def test_training_computes_weights_again_once_the_learner_is_gone(way: Any) -> None:
    learner: Any = GPM(network(way))
    assert changes(learner.model)
    learn(learner, loader(0))
    assert changes(learner.model)
    learn(learner, loader(1))
    assert not changes(learner.model)
    with torch.no_grad():  # else torch cannot copy what the old spectral norm has computed
        learner.model(loader(0)[0][0])
    exported, twin = learner.export(0), copy.deepcopy(learner.model)
    assert changes(exported) == (way is spectral_norm)
    assert not changes(twin)
    learn(GPM(twin), loader(0))
    assert changes(twin)
    detach(learner)
    assert changes(learner.model)


def test_spectral_norm_is_trained_as_ever_in_the_first_task() -> None:
    models = [network(parametrizations.spectral_norm) for _ in range(2)]
    learner = GPM(models[0])
    learner.begin_task(loader(0), loss_fn)
    train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.05)), loader(0))
    optimizer = torch.optim.SGD(models[1].parameters(), lr=0.05)
    for x, y in loader(0):
        optimizer.zero_grad()
        loss_fn(models[1](x), y).backward()
        optimizer.step()
    assert same_bits(*models)
