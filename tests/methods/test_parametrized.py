"""Networks with weight norm are protected by the weight that they compute, whatever the optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from cuber import CUBER, GPM, HAT, OWM, TRGP, SoftCUBER
from cuber.core.layerwise import LayerwiseMethod
from cuber.methods import METHODS
from tests.loops import OPTIMIZERS, Watch, learn, logits, loss_fn, train, weights

FAMILY: dict[str, Any] = {
    "GPM": lambda model: GPM(model, threshold=0.9),
    "TRGP": lambda model: TRGP(model, threshold=0.9, eps1=0.0),
    "CUBER": lambda model: CUBER(model, threshold=0.9, eps1=0.0, eps2=-1.0),
    "SoftCUBER": lambda model: SoftCUBER(model, threshold=0.9, eps1=0.0),
}
family = pytest.mark.parametrize("make", FAMILY.values(), ids=FAMILY.keys())
kinds = pytest.mark.parametrize("kind", ["mlp", "cnn"])


def network(kind: str, *, normed: bool) -> nn.Module:
    torch.manual_seed(0)
    norm: Any = weight_norm if normed else nn.Sequential
    if kind == "mlp":
        return nn.Sequential(
            norm(nn.Linear(8, 10, bias=False)),
            nn.Tanh(),
            nn.Linear(10, 6),
            nn.Tanh(),
            norm(nn.Linear(6, 3, bias=False)),
        )
    first = norm(nn.Conv2d(2, 4, 3, groups=2))
    return nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), norm(nn.Linear(6, 3)))


def loader(kind: str, task: int, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(16, *((8,) if kind == "mlp" else (2, 4, 4)), generator=generator, dtype=torch.float64)
    x = x * torch.rand(x.shape[1:], generator=generator, dtype=torch.float64) ** 3  # some directions are weak
    y = torch.randint(3, (16,), generator=generator)
    return list(zip(x.to(dtype).split(8), y.split(8), strict=True))


@kinds
@pytest.mark.parametrize("make", [FAMILY["GPM"], FAMILY["TRGP"]], ids=["GPM", "TRGP"])
@pytest.mark.parametrize("optimizer", ["SGD", "momentum", "AdamW", "LBFGS"])
def test_computed_weights_do_not_move_along_protected_directions(kind: str, make: Any, optimizer: str) -> None:
    learner = make(network(kind, normed=True))
    assert learner.coverage().protected == sum(p.numel() for p in learner.model.parameters())
    learn(learner, loader(kind, 0), OPTIMIZERS[optimizer], epochs=2)
    data = loader(kind, 1)
    learner.begin_task(data, loss_fn)
    watch = Watch.over(learner)
    train(learner, learner.wrap(OPTIMIZERS[optimizer](learner.parameters())), data, epochs=2, after_step=watch.held)
    assert watch.moved() > 1e-3


@kinds
@pytest.mark.parametrize("make", [*FAMILY.values(), OWM], ids=[*FAMILY, "OWM"])
def test_a_small_step_of_sgd_changes_the_weights_as_it_does_without_weight_norm(kind: str, make: Any) -> None:
    changes = []
    for normed in (False, True):
        torch.manual_seed(1)
        learner = make(network(kind, normed=normed).double())
        learn(learner, loader(kind, 0, torch.float64), lambda p: torch.optim.SGD(p, lr=1e-9))
        data = loader(kind, 1, torch.float64)
        learner.begin_task(data, loss_fn)
        for layer in learner.layers.values():  # where the penalty of CUBER and the model of SoftCUBER have a gradient
            moved = torch.randn(layer.matrix().shape, generator=torch.Generator().manual_seed(0)).double()
            layer.set_matrix(layer.matrix() + 0.1 * learner_direction(learner, layer, moved))
        before = weights(learner)
        train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=1e-7)), data[:1], end_epochs=False)
        changes.append([(now - before[name]) / 1e-7 for name, now in weights(learner).items()])
    for plain, normed_change in zip(*changes, strict=True):
        assert float(plain.norm()) > 1e-3
        assert float((plain - normed_change).norm()) < 1e-4 * float(plain.norm())


def learner_direction(learner: Any, layer: Any, change: Tensor) -> Tensor:
    """Return what a method allows of a change."""
    if isinstance(learner, OWM):
        return learner.filter_update(layer, change)
    return layer.constraint.projector.outside(change)


@family
@pytest.mark.parametrize("length", [1, 3])
def test_the_first_task_is_plain_training(make: Any, length: float) -> None:
    """Also where lengths are not those of the weight's rows, as after some steps or in a pretrained model."""
    model = network("mlp", normed=True)
    with torch.no_grad():
        model[0].parametrizations.weight.original1.mul_(length)
    plain, data = copy.deepcopy(model), loader("mlp", 0)
    learner = make(model)
    learner.begin_task(data, loss_fn)
    train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.5)), data, epochs=3)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for x, y in data * 3:
        optimizer.zero_grad()
        loss_fn(plain(x), y).backward()
        optimizer.step()
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter, expected)


def test_the_gradient_that_a_task_leaves_does_not_depend_on_how_its_weight_is_computed() -> None:
    found = []
    for normed in (False, True):
        learner = CUBER(network("mlp", normed=normed).double())
        if normed:
            with torch.no_grad():  # weight norm divides by the length of these rows
                learner.model[0].parametrizations.weight.original1.mul_(3)
        learner.begin_task(loader("mlp", 0, torch.float64), loss_fn)
        found.append(learner.mean_gradients(loader("mlp", 0, torch.float64)))
    for plain, normed_gradient in zip(found[0].values(), found[1].values(), strict=True):
        assert torch.allclose(plain, normed_gradient, atol=1e-7)


@family
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_resumed_task_ends_with_the_same_bits(make: Any, optimizer: str) -> None:
    learner = make(network("cnn", normed=True))
    learn(learner, loader("cnn", 0), OPTIMIZERS[optimizer])
    data = loader("cnn", 1)
    learner.begin_task(data, loss_fn)
    first = learner.wrap(OPTIMIZERS[optimizer](learner.parameters()))
    train(learner, first, data, end_epochs=False)
    model = network("cnn", normed=True)
    model.load_state_dict(learner.model.state_dict())
    other = make(model)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    other.resume_task(loss_fn)
    second = OPTIMIZERS[optimizer](other.parameters())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    other.wrap(second)
    for each, stepped in ((learner, first), (other, second)):
        train(each, stepped, data)
        each.end_task(data)
    for one, two in zip(learner.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)


@kinds
@pytest.mark.parametrize("make", [*FAMILY.values(), OWM, HAT], ids=[*FAMILY, "OWM", "HAT"])
def test_an_export_computes_what_the_task_does_with_plain_weights(kind: str, make: Any) -> None:
    learner = make(network(kind, normed=True))
    for task in range(2):
        learn(learner, loader(kind, task), OPTIMIZERS["AdamW"])
    if isinstance(learner, HAT):
        learner.embeddings[0]["0"][0] = -1e9  # a gate that is closed: the row of its unit is 0
    x = loader(kind, 0)[0][0]
    for task in range(2):
        plain = learner.export(task)
        assert not any("parametrizations" in key for key in plain.state_dict())
        assert torch.allclose(plain(x), logits(learner, task, x), atol=1e-6)


@pytest.mark.parametrize("whole", [False, True], ids=["one unit", "layer"])
@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if not kind.joint])
def test_units_whose_weight_is_zero_are_learned_and_protected(method: str, whole: bool) -> None:
    """As pruned units have, and layers that are initialized to 0."""
    model = network("cnn", normed=True)
    lengths = model[-1].parametrizations.weight.original0
    lengths.data[: len(lengths) if whole else 1] = 0
    learner = METHODS[method](model)
    for task in range(2):
        learn(learner, loader("cnn", task))
        assert logits(learner, 0, loader("cnn", 0)[0][0]).isfinite().all()
    if isinstance(learner, LayerwiseMethod):
        assert "5" in learner.layers
    assert lengths.any()


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_lora_adapts_no_layer_whose_weight_is_computed() -> None:
    pytest.importorskip("peft")
    from cuber import LoRA

    assert list(LoRA(network("mlp", normed=True)).layers) == ["2"]
    model: Any = network("cnn", normed=False)
    nn.utils.weight_norm(model[-1][0])
    assert list(LoRA(model).layers) == ["3"]


@kinds
def test_averages_of_what_weights_are_computed_from_keep_protected_directions(kind: str) -> None:
    learner = GPM(network(kind, normed=True), threshold=0.9, ema=2)
    learn(learner, loader(kind, 0), OPTIMIZERS["AdamW"])
    data = loader(kind, 1)
    learner.begin_task(data, loss_fn)
    watch = Watch.over(learner)
    train(learner, learner.wrap(torch.optim.AdamW(learner.parameters(), lr=0.1)), data, epochs=4)
    learner.end_task(data)
    watch.held()
