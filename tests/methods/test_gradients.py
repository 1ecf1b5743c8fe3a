"""After ``backward()``, ``.grad`` is the gradient of the loss; ``step()`` projects it, whatever was done to it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from cuber import CUBER, GPM, TRGP
from cuber.layers import backends
from tests.oracles.dense import effective_weight

Loader = list[tuple[Tensor, Tensor]]
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)), (12,)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 8, 3, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3)),
        (2, 5, 5),
    ),
}
METHODS: dict[str, tuple[type, dict[str, Any]]] = {
    "GPM": (GPM, {}),
    "TRGP": (TRGP, {"eps1": 0.0}),
    "CUBER": (CUBER, {"eps1": 0.0, "eps2": -1.0, "lam": 0.1, "penalty": "norm", "selected": 1}),
}
models = pytest.mark.parametrize("name", MODELS)
methods = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def _shortcuts_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "WORTHWHILE", 0)


def data(task: int, shape: tuple[int, ...], dtype: torch.dtype, batches: int = 5, size: int = 4) -> Loader:
    generator = torch.Generator().manual_seed(task)
    return [(torch.randn(size, *shape, generator=generator).to(dtype), torch.arange(size) % 3) for _ in range(batches)]


def learner_of(name: str, method: str, backend: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(1)
    kind, settings = METHODS[method]
    return kind(MODELS[name][0]().to(dtype), threshold=0.8, backend=backend, **settings)


def begin(learner: Any, name: str, dtype: torch.dtype) -> tuple[Any, Loader]:
    loader = data(learner.tasks, MODELS[name][1], dtype)
    learner.begin_task(loader, functional.cross_entropy)
    return learner.wrap(SGD(learner.parameters(), lr=0.1)), loader


@functools.cache
def after_two_tasks(name: str, method: str, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights and the learner's state."""
    learner = learner_of(name, method, "plain", dtype)
    for _ in range(2):
        optimizer, loader = begin(learner, name, dtype)
        train(learner, optimizer, loader)
        learner.end_task(loader)
    return copy.deepcopy(learner.model.state_dict()), learner.state_dict()


def in_third_task(
    name: str, method: str, *, backend: str = "fast", dtype: torch.dtype = torch.float64
) -> tuple[Any, Any, Loader]:
    """Return a learner that has begun to learn a third task, its optimizer, and the task's batches."""
    learner = learner_of(name, method, backend, dtype)
    weights, state = after_two_tasks(name, method, dtype)
    learner.model.load_state_dict(weights)
    learner.load_state_dict(state)
    optimizer, loader = begin(learner, name, dtype)
    train(learner, optimizer, loader)
    return learner, optimizer, loader


def train(
    learner: Any, optimizer: Any, loader: Loader, change: Callable[[Any], object] = lambda _: None, every: int = 1
) -> None:
    """Train on all batches; change gradients before each step, which is made after ``every`` batches."""
    for position, (x, y) in enumerate(loader):
        if position % every == 0:
            optimizer.zero_grad()
        functional.cross_entropy(learner.model(x), y).backward()
        if position % every == every - 1:
            change(learner.model)
            optimizer.step()


def drift(learner: Any) -> float:
    """Return how far weights have moved along protected columns, relative to their norms."""
    worst = 0.0
    for name, layer in learner.layers.items():
        inside = learner.displacement(name)[:, learner.memory[name].protected_columns()]
        worst = max(worst, float(inside.norm() / layer.matrix().detach().norm()))
    return worst


def gradients(learner: Any, loss: Tensor) -> dict[str, Tensor]:
    """Run the backward pass of a loss and return the ``.grad`` of every weight."""
    learner.model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in learner.model.named_parameters()}


def close(one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 1e-10) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], atol=atol) for name in one)


@models
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_with_gpm_grad_is_the_gradient_of_the_loss(name: str, compiled: bool) -> None:
    learner, _, _ = in_third_task(name, "GPM")
    bare = MODELS[name][0]().double()
    bare.load_state_dict(learner.model.state_dict())
    torch._dynamo.reset()
    model: Any = torch.compile(learner.model, backend="eager") if compiled else learner.model
    for samples in (2, 40):  # fewer and more rows than outputs
        ((x, y),) = data(9, MODELS[name][1], torch.float64, 1, samples)
        functional.cross_entropy(bare(x), y).backward()
        expected = {key: parameter.grad for key, parameter in bare.named_parameters()}
        assert close(gradients(learner, functional.cross_entropy(model(x), y)), expected)  # type: ignore[arg-type]
        bare.zero_grad()


@models
@pytest.mark.parametrize(
    ("method", "compiled"),
    [("TRGP", False), ("CUBER", False), ("CUBER", True)],
    ids=["TRGP", "CUBER", "CUBER compiled"],
)
def test_with_scalings_grad_is_the_same_in_both_back_ends_and_for_all_batch_sizes(
    name: str, method: str, compiled: bool
) -> None:
    ((x, y),) = data(9, MODELS[name][1], torch.float64, 1, 40)
    plain, _, _ = in_third_task(name, method, backend="plain")
    expected = gradients(plain, functional.cross_entropy(plain.model(x), y))
    learner, _, _ = in_third_task(name, method)
    torch._dynamo.reset()
    model: Any = torch.compile(learner.model, backend="eager") if compiled else learner.model
    for size in (2, 40):
        losses = [functional.cross_entropy(model(x[part]), y[part]) for part in torch.arange(40).split(size)]
        assert close(gradients(learner, torch.stack(losses).mean()), expected)


@models
@pytest.mark.parametrize("method", ["TRGP", "CUBER"])
def test_with_scalings_grad_differs_from_that_of_the_loss_along_protected_columns_only(name: str, method: str) -> None:
    learner, _, loader = in_third_task(name, method)
    x, y = loader[0]
    gradients(learner, functional.cross_entropy(learner.model(x), y))
    ours = {key: layer.gradient() for key, layer in learner.layers.items()}
    weights = {key: layer.matrix().detach().requires_grad_() for key, layer in learner.layers.items()}
    effective = {}
    for key, layer in learner.layers.items():
        scaled = effective_weight(weights[key], [layer.scaling.basis], [layer.scaling.dense()])
        parts = layer.split(scaled)
        effective |= {f"{key}.{part}": value for part, value in zip(("weight", "bias"), parts, strict=False)}
    bare = MODELS[name][0]().double()
    functional.cross_entropy(torch.func.functional_call(bare, effective, x), y).backward()
    for key, layer in learner.layers.items():
        projector, exact = layer.constraint.projector, weights[key].grad
        assert torch.allclose(projector.outside(ours[key]), projector.outside(exact), atol=1e-10)
        assert not torch.allclose(ours[key], exact, atol=1e-4)


# Between backward() and step()


def clip_norm(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def clamp_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.data.clamp_(-0.01, 0.01)  # type: ignore[union-attr]


def replace(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)


def replace_by_scaled(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.grad * 0.5  # type: ignore[operator]


def add_decay(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.add_(parameter.detach(), alpha=0.01)  # type: ignore[union-attr]


def regularize(model: nn.Module) -> None:
    sum(parameter.square().sum() for parameter in model.parameters()).mul(0.01).backward()  # type: ignore[union-attr]


def shift_weights(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3)


def drop_first(model: nn.Module) -> None:
    next(model.parameters()).grad = None


CHANGES = [clip_norm, clamp_data, replace, replace_by_scaled, add_decay, regularize, shift_weights, drop_first]


def same_way(name: str, method: str, go_on: Callable[[Any, Any, Loader], None]) -> Any:
    """Go on from the same state with both back ends; return the fast learner, after comparing the weights."""
    (plain, *of_plain), (fast, *of_fast) = (in_third_task(name, method, backend=kind) for kind in ("plain", "fast"))
    before = [parameter.detach().clone() for parameter in fast.model.parameters()]
    go_on(plain, *of_plain)
    go_on(fast, *of_fast)
    assert any(bool((p - was).norm() > 1e-3) for p, was in zip(fast.model.parameters(), before, strict=True))
    for one, other in zip(plain.parameters(), fast.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-9)
    for key, layer in fast.layers.items():  # the cached displacement is right, too
        free = ~fast.memory[key].protected_columns(at_start=True)
        assert torch.allclose(layer.backend.displacement(), fast.displacement(key)[:, free], atol=1e-10)
    return fast


@models
@pytest.mark.parametrize("method", ["GPM", "CUBER"])
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_that_were_changed_before_the_step_are_projected(name: str, method: str, change: Any) -> None:
    learner = same_way(name, method, lambda *where: train(*where, change))
    assert drift(learner) < 1e-12 or change is shift_weights


@models
@methods
@pytest.mark.parametrize("every", [2, 5])
def test_gradients_of_several_batches_are_projected_as_their_sum(name: str, method: str, every: int) -> None:
    learner = same_way(name, method, lambda *where: train(*where, every=every))
    assert drift(learner) < 1e-12


@models
@pytest.mark.parametrize("method", ["GPM", "CUBER"])
def test_hooks_of_the_user_on_weights_and_optimizer_are_respected(name: str, method: str) -> None:
    """One that halves gradients in the backward pass, and one that clamps them before the step, called before ours."""

    def go_on(learner: Any, _: Any, loader: Loader) -> None:
        for parameter in learner.model.parameters():
            parameter.register_hook(lambda gradient: gradient * 0.5)
        optimizer = SGD(learner.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: clamp_data(learner.model))
        train(learner, learner.wrap(optimizer), loader)

    assert drift(same_way(name, method, go_on)) < 1e-12


@models
@methods
def test_a_gradient_scaler_changes_nothing(name: str, method: str) -> None:
    def go_on(learner: Any, optimizer: Any, loader: Loader) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for x, y in loader:
            optimizer.zero_grad()
            scaler.scale(functional.cross_entropy(learner.model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()

    assert drift(same_way(name, method, go_on)) < 1e-12


@models
@methods
def test_evaluation_under_autocast_in_the_middle_of_a_task_changes_nothing(name: str, method: str) -> None:
    learner, _, loader = in_third_task(name, method, dtype=torch.float32)
    x = loader[0][0][:2]  # fewer than any layer has outputs
    before = learner.model(x)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        with learner.as_task(0) as model:
            model(x)
        learner.end_epoch()
    assert torch.allclose(learner.model(x), before, atol=1e-6)


@models
@methods
@pytest.mark.parametrize("how", ["autocast", "half precision"])
def test_protection_holds_in_less_precision(name: str, method: str, how: str) -> None:
    dtype = torch.float32 if how == "autocast" else torch.bfloat16
    learner, optimizer, loader = in_third_task(name, method, dtype=dtype)
    for x, y in loader * 4:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            loss = functional.cross_entropy(learner.model(x), y)
        loss.backward()
        optimizer.step()
    assert drift(learner) < (2e-6 if how == "autocast" else 2e-2)


@models
@pytest.mark.parametrize("method", ["TRGP", "CUBER"])
def test_a_gradient_may_be_differentiated_again(name: str, method: str) -> None:
    found = []
    for backend in ("plain", "fast"):
        learner, _, loader = in_third_task(name, method, backend=backend)
        x, y = loader[0][0].requires_grad_(), loader[0][1]
        (gradient,) = torch.autograd.grad(functional.cross_entropy(learner.model(x), y), x, create_graph=True)
        learner.model.zero_grad()
        scalings = [layer.scaling.matrix for layer in learner.layers.values()]
        for scaling in scalings:
            scaling.grad = None
        gradient.square().sum().backward(inputs=learner.parameters())
        found.append([parameter.grad for parameter in learner.parameters()])
    for one, other in zip(*found, strict=True):
        assert one.any()
        assert torch.allclose(one, other, atol=1e-12)


@models
@methods
def test_weights_given_to_functional_call_are_the_ones_that_count(name: str, method: str) -> None:
    """Scalings read such weights where they are, in training as in evaluation."""
    learner, _, loader = in_third_task(name, method)
    x, model = loader[0][0], learner.model
    others = {key: p.detach() + 0.1 * torch.randn_like(p) for key, p in model.named_parameters()}
    answers = [torch.func.functional_call(model.train(mode), others, x) for mode in (True, False)]
    assert torch.allclose(*answers, atol=1e-12)


@models
@methods
def test_a_copy_of_the_model_is_not_anchored(name: str, method: str) -> None:
    learner, _, loader = in_third_task(name, method)
    twin, x = copy.deepcopy(learner.model), loader[0][0]
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert torch.allclose(twin.train()(x), twin.eval()(x), atol=1e-12)


@models
@methods
def test_a_copy_of_the_learner_goes_on_as_the_learner_does(name: str, method: str) -> None:
    learner, optimizer, loader = in_third_task(name, method)
    twin = copy.deepcopy(learner)
    train(twin, twin.wrap(SGD(twin.parameters(), lr=0.1)), loader)
    train(learner, optimizer, loader)
    for one, other in zip(learner.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


@models
@methods
@pytest.mark.parametrize("backend", ["plain", "fast"])
def test_a_model_may_change_its_precision_in_the_middle_of_a_task(name: str, method: str, backend: str) -> None:
    learner, optimizer, loader = in_third_task(name, method, backend=backend, dtype=torch.float32)
    learner.model.double()
    doubled = learner.sample = [(x.double(), y) for x, y in loader]
    train(learner, optimizer, doubled)
    learner.end_epoch()
    assert drift(learner) < 2e-6
    learner.end_task(doubled)
