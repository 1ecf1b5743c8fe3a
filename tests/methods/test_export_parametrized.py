"""An export has plain weights in place of parametrizations, and the model that it was copied from keeps its own."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from cuber import GPM, HAT, OWM, TRGP, FineTune
from cuber.layers.computed import bake_parametrizations
from tests.loops import learn, logits, sgd
from tests.methods.test_export_formats import WITHOUT_CUBER

METHODS: dict[str, Any] = {
    "FineTune": FineTune,
    "GPM": GPM,
    "TRGP": lambda model: TRGP(model, eps1=0.0),
    "OWM": OWM,
    "HAT": lambda model: HAT(model, smax=3.0),
}


class Doubled(nn.Module):
    """Not a class of torch: a process that loads an export does not have it."""

    def forward(self, original: Tensor) -> Tensor:
        return 2 * original

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight / 2


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm": parametrizations.weight_norm,
    "own": lambda module: parametrize.register_parametrization(module, "weight", Doubled()),
    "spectral norm": parametrizations.spectral_norm,
    "two": lambda module: parametrize.register_parametrization(parametrizations.weight_norm(module), "bias", Doubled()),
}


def loader(task: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    x, y = torch.randn(16, 8, generator=generator), torch.randint(3, (16,), generator=generator)
    return list(zip(x.split(8), y.split(8), strict=True))


def learned(method: str, way: str) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 10), nn.Tanh(), WAYS[way](nn.Linear(10, 6)), nn.Tanh(), nn.Linear(6, 3))
    learner = METHODS[method](model)
    for task in range(2):
        learn(learner, loader(task), lambda parameters: torch.optim.SGD(parameters, lr=0.3), epochs=2)
    return learner


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", METHODS)
def test_the_export_has_plain_weights_and_the_model_keeps_training(method: str, way: str) -> None:
    learner, x = learned(method, way), loader(0)[0][0]
    for task in range(2):
        with parametrize.cached():  # torch's cache has the weights of the model for its copies, too
            expected = logits(learner, task, x)
        plain = learner.export(task)
        layer = plain[2]
        assert type(layer) is nn.Linear
        assert sorted(name for name, _ in layer.named_parameters()) == ["bias", "weight"]
        assert layer.weight.requires_grad
        assert not list(layer.children()) + list(layer.buffers())
        assert not layer._load_state_dict_pre_hooks
        assert torch.allclose(plain(x), expected, atol=1e-6)
    before = copy.deepcopy(learner.model.state_dict())
    learn(learner, loader(2), sgd)
    assert any(not torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())
    assert parametrize.is_parametrized(learner.model[2], "weight")
    assert torch.allclose(learner.export(2)(x), logits(learner, 2, x), atol=1e-6)


def test_exports_are_saved_and_loaded_without_cuber(tmp_path: Path) -> None:
    x = loader(0)[0][0]
    learners = [learned("GPM", way) for way in WAYS]
    saved = [(each.export(task), x, logits(each, task, x)) for each in learners for task in range(2)]
    torch.save(saved, tmp_path / "tasks.pt")
    command = [sys.executable, "-I", "-c", WITHOUT_CUBER, str(tmp_path / "tasks.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("without cuber: Sequential\n", 0), done.stderr


def test_a_computed_buffer_becomes_a_buffer_and_a_frozen_weight_stays_frozen() -> None:
    model: Any = nn.BatchNorm1d(3)
    parametrize.register_parametrization(model, "running_mean", Doubled())
    frozen: Any = parametrizations.weight_norm(nn.Linear(3, 2)).requires_grad_(False)
    mean, weight = model.running_mean.clone(), frozen.weight.clone()
    plain: Any = nn.Sequential(model, frozen)
    bake_parametrizations(plain)
    assert torch.equal(dict(plain[0].named_buffers())["running_mean"], mean)
    assert torch.equal(plain[1].weight, weight)
    assert not plain[1].weight.requires_grad
