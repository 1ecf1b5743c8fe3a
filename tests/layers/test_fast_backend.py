"""The fast back end gives what the plain one gives, also where gradients were changed after the backward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber.layers import ProtectedLayer, backends
from cuber.layers.backends import FastBackend
from cuber.subspace import Anchor, Constraint, NormPenalty, Scaling, supports_of
from tests.layers.table import Conv1D, protected

POOL = 7
"""Number of columns."""
WIDE = 64
"""Number of outputs: more than input vectors in a batch."""

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "narrow": (lambda: nn.Linear(12, 2, bias=False), (2, 12)),
    "narrow with bias": (lambda: nn.Linear(12, 2), (2, 12)),
    "sequences": (lambda: nn.Linear(12, 8), (2, 3, 12)),
    "wide": (lambda: nn.Linear(9, 30), (5, 9)),
    "many inputs": (lambda: nn.Linear(12, 3), (20, 12)),
    "in x out": (lambda: Conv1D(30, 9), (5, 9)),
    "convolution": (lambda: nn.Conv2d(3, 4, 2, bias=False), (2, 3, 4, 4)),
    "convolution with bias": (lambda: nn.Conv2d(3, 4, 2), (2, 3, 4, 4)),
    "groups": (lambda: nn.Conv2d(8, 6, 2, groups=2, bias=False), (2, 8, 3, 3)),
}


@pytest.fixture(autouse=True)
def _shortcuts_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "WORTHWHILE", 0)


def layer_in_task(module: nn.Module, backend: str, free: int, scaling: str = "none") -> ProtectedLayer:
    """Return a layer in the middle of a task: constrained, moved since it began, with a scaling or without.

    Args:
        free: number of free columns; the last of the pool.
        scaling: "none", "dense", or "supports" for one that is learned in few rows.
    """
    generator = torch.Generator().manual_seed(1)
    layer = protected(module, backend)
    dtype = layer.parameter.dtype
    pool = torch.linalg.qr(torch.randn(layer.dimension, POOL, dtype=torch.float64, generator=generator)).Q
    movable = torch.arange(POOL) >= POOL - free
    start = layer.matrix().detach().double()
    moved = torch.randn(start.shape, dtype=torch.float64, generator=generator)
    layer.set_matrix(start + 0.1 * (moved - moved @ pool[:, ~movable] @ pool[:, ~movable].T))
    pool, start = pool.to(dtype), start.to(dtype)
    anchor = Anchor.of(start, pool)
    owned = torch.stack([torch.arange(POOL) >= 2, torch.arange(POOL) != 4])
    penalty = NormPenalty(owned[:, movable], movable[movable], anchor.start[:, movable]) if free else None
    layer.constraint = Constraint(pool, ~movable, movable, anchor, penalty)
    if scaling != "none":
        supports = supports_of(anchor.start[:1], owned, movable) if scaling == "supports" else []
        layer.scaling = Scaling(pool, owned, supports, like=start, train=True)
        drawn = torch.randn(layer.scaling.matrix.shape, dtype=torch.float64, generator=generator).to(dtype)
        layer.scaling.matrix.data = drawn * (layer.scaling.share > 0)
    return layer


def both_layers(build: Callable[[], nn.Module], *args: Any) -> tuple[ProtectedLayer, ProtectedLayer]:
    """Return the same layer with the plain and with the fast back end."""
    module = build()
    plain, fast = (layer_in_task(copy.deepcopy(module), backend, *args) for backend in ("plain", "fast"))
    return plain, fast


def backward(layer: ProtectedLayer, x: Tensor) -> list[Tensor]:
    """Return the output, and the gradients of input, weight and scaling."""
    x = x.detach().requires_grad_()
    y = layer.forward(layer.modules[0], x)
    y.tanh().mean().backward()
    assert x.grad is not None
    scaling = [] if layer.scaling is None else [layer.scaling.matrix.grad]
    return [y.detach(), x.grad, layer.gradient().clone(), *scaling]  # type: ignore[list-item]


def close(one: Tensor, other: Tensor) -> bool:
    atol = 1e-10 if one.dtype == torch.float64 else 1e-6
    return torch.allclose(one, other, atol=atol, rtol=1e-4)


def uses_factors(layer: ProtectedLayer) -> bool:
    assert isinstance(layer.backend, FastBackend)
    return layer.backend._matching_factors()[0] is not None


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("free", [0, 2, POOL])
@pytest.mark.parametrize("scaling", ["none", "dense", "supports"])
def test_every_result_of_a_step_is_that_of_the_plain_back_end(name: str, free: int, scaling: str) -> None:
    build, shape = LAYERS[name]
    plain, fast = both_layers(lambda: build().double(), free, scaling)
    for batch in range(3):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(batch)).double()
        for one in (plain, fast):
            one.modules[0].zero_grad()
        for one, other in zip(backward(plain, x), backward(fast, x), strict=True):
            assert close(one, other)
        for layer in (plain, fast):
            layer.backend.project_gradient()
            if free:
                displacement = layer.backend.displacement()
                layer.backend.add_to_gradient(layer.require_constraint().penalty.gradient(displacement), 0.1)  # type: ignore[union-attr]
        assert close(plain.gradient(), fast.gradient())
        if free:
            assert close(plain.backend.displacement(), fast.backend.displacement())
        for layer in (plain, fast):
            layer.set_matrix(layer.matrix() - 0.1 * layer.gradient())
            layer.backend.after_step(0.1)
    for layer in (plain, fast):  # in evaluation the whole weight is read as it is
        layer.modules[0].eval()
    for one, other in zip(backward(plain, x), backward(fast, x), strict=True):
        assert close(one, other)
    for layer in (plain, fast):
        layer.set_matrix(layer.matrix() + 0.01)
        assert layer.backend.has_drifted() or free == POOL
        layer.backend.restore_protected()
    assert close(plain.matrix(), fast.matrix())


# Gradients that were changed between backward() and step()


def unchanged(layer: ProtectedLayer) -> None:
    pass


def scale(layer: ProtectedLayer) -> None:
    for gradient in layer.gradients():
        gradient *= 0.5


def replace_by_scaled(layer: ProtectedLayer) -> None:
    for parameter in layer.parameters:
        parameter.grad = -3 * parameter.grad  # type: ignore[operator]


def clip_norm(layer: ProtectedLayer) -> None:
    nn.utils.clip_grad_norm_(layer.parameters, 1e-3)


def add_noise(layer: ProtectedLayer) -> None:
    for gradient in layer.gradients():
        gradient += (
            0.1 * gradient.abs().mean() * torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0))
        )


def regularize_slightly(layer: ProtectedLayer) -> None:
    """As a weight decay in the loss: unnoticed, it would add up over many steps."""
    size = 5e-5 * float(layer.gradient().norm() / layer.matrix().detach().norm())
    for parameter, gradient in zip(layer.parameters, layer.gradients(), strict=True):
        gradient.add_(parameter.detach(), alpha=size)


def replace(layer: ProtectedLayer) -> None:
    for parameter in layer.parameters:
        parameter.grad = torch.ones_like(parameter)


def clamp_data(layer: ProtectedLayer) -> None:
    for gradient in layer.gradients():
        gradient.data.clamp_(-1e-3, 1e-3)


def clip_value(layer: ProtectedLayer) -> None:
    nn.utils.clip_grad_value_(layer.parameters, 1e-3)


def clear(layer: ProtectedLayer) -> None:
    for gradient in layer.gradients():
        gradient.zero_()


def scale_bias_only(layer: ProtectedLayer) -> None:
    layer.gradients()[-1].mul_(2)


def drop_bias(layer: ProtectedLayer) -> None:
    layer.parameters[-1].grad = None


def change_one_entry(layer: ProtectedLayer) -> None:
    layer.gradients()[0][3, 2] += 1e-2 * layer.gradient().norm()


def not_a_number(layer: ProtectedLayer) -> None:
    layer.gradients()[0][0, 0] = float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("free", [0, 2])
@pytest.mark.parametrize(
    ("change", "factors"),
    [
        (unchanged, True),
        (scale, True),
        (replace_by_scaled, True),
        (clip_norm, True),
        (add_noise, False),
        (regularize_slightly, False),
        (replace, False),
        (clamp_data, False),
        (clip_value, False),
        (clear, False),
        (scale_bias_only, False),
        (drop_bias, False),
        (change_one_entry, False),
        (not_a_number, False),
    ],
)
def test_changed_gradients_are_projected_as_they_are(
    change: Callable[[ProtectedLayer], None], factors: bool, free: int, dtype: torch.dtype
) -> None:
    plain, fast = both_layers(lambda: nn.Linear(12, WIDE, dtype=dtype), free)
    x = torch.randn(5, 12, dtype=dtype)
    for layer in (plain, fast):
        backward(layer, x)
        change(layer)
    assert uses_factors(fast) == factors
    for layer in (plain, fast):
        layer.backend.project_gradient()
    scale = float(plain.gradient().nan_to_num().norm())
    assert torch.allclose(plain.gradient(), fast.gradient(), atol=1e-6 * scale, equal_nan=True)


def twice(layer: ProtectedLayer, x: Tensor) -> Tensor:
    return layer.forward(layer.modules[0], x).tanh().mean() + layer.forward(layer.modules[0], 2 * x).tanh().mean()


def beside_a_regularizer(layer: ProtectedLayer, x: Tensor) -> Tensor:
    return layer.forward(layer.modules[0], x).tanh().mean() + 1e-3 * layer.parameter.square().sum()


def beside_its_own_weight(layer: ProtectedLayer, x: Tensor) -> Tensor:
    return layer.forward(layer.modules[0], x).tanh().mean() + functional.linear(x, layer.parameter).tanh().mean()


def in_evaluation(layer: ProtectedLayer, x: Tensor) -> Tensor:
    layer.modules[0].eval()
    return layer.forward(layer.modules[0], x).tanh().mean()


def doubly_differentiated(layer: ProtectedLayer, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(layer.forward(layer.modules[0], x).tanh().sum(), x, create_graph=True)
    return gradient.square().mean()


def checkpointed(layer: ProtectedLayer, x: Tensor) -> Tensor:
    module = layer.modules[0]
    y = torch.utils.checkpoint.checkpoint(lambda x: layer.forward(module, x), x, use_reentrant=False)
    return y.tanh().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("scaling", ["none", "dense"])
@pytest.mark.parametrize(
    ("loss", "factors"),
    [
        (twice, True),
        (checkpointed, True),
        (beside_a_regularizer, False),
        (beside_its_own_weight, False),
        (in_evaluation, False),
        (doubly_differentiated, False),
    ],
)
def test_gradients_of_any_loss_are_the_same_and_projected_the_same(
    loss: Callable[[ProtectedLayer, Tensor], Tensor], factors: bool, scaling: str
) -> None:
    plain, fast = both_layers(lambda: nn.Linear(12, WIDE).double(), 2, scaling)
    x = torch.randn(5, 12).double()
    for layer in (plain, fast):
        loss(layer, x).backward()
    assert close(plain.gradient(), fast.gradient())
    assert uses_factors(fast) == factors
    for layer in (plain, fast):
        layer.backend.project_gradient()
    assert close(plain.gradient(), fast.gradient())


@pytest.mark.parametrize(("batches", "factors"), [(3, True), (20, False)])
def test_gradients_of_several_batches_are_projected_as_their_sum(batches: int, factors: bool) -> None:
    plain, fast = both_layers(lambda: nn.Linear(12, WIDE).double(), 2)
    for _ in range(batches):
        x = torch.randn(5, 12).double()
        for layer in (plain, fast):
            backward(layer, x)
    assert uses_factors(fast) == factors, "factors with more rows than the gradient are of no use"
    for layer in (plain, fast):
        layer.backend.project_gradient()
    assert close(plain.gradient(), fast.gradient())


def test_factors_of_a_gradient_that_was_dropped_are_not_used() -> None:
    """As after a step that a GradScaler has skipped; the step after that uses factors again."""
    plain, fast = both_layers(lambda: nn.Linear(12, WIDE).double(), 2)
    backward(fast, torch.randn(5, 12).double())
    fast.modules[0].zero_grad()
    for factors in (False, True):
        x = torch.randn(5, 12).double()
        for layer in (plain, fast):
            layer.modules[0].zero_grad()
            backward(layer, x)
        assert uses_factors(fast) == factors
        for layer in (plain, fast):
            layer.backend.project_gradient()
        assert close(plain.gradient(), fast.gradient())


@pytest.mark.parametrize("how", ["half precision", "autocast"])
def test_gradients_that_were_computed_in_half_precision_are_projected_themselves(how: str) -> None:
    dtype = torch.bfloat16 if how == "half precision" else torch.float32
    layer = layer_in_task(nn.Linear(12, WIDE).to(dtype), "fast", 0)
    x = torch.randn(5, 12).to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        loss = layer.forward(layer.modules[0], x).float().tanh().mean()
    loss.backward()
    assert not uses_factors(layer)
    layer.backend.project_gradient()
    inside = layer.gradient().float() @ layer.require_constraint().basis.float()
    assert inside.norm() < (1e-2 if how == "half precision" else 1e-6) * layer.gradient().float().norm()


def test_torch_func_gives_the_gradient_of_the_loss() -> None:
    layer = layer_in_task(nn.Linear(12, WIDE).double(), "fast", 2)
    x, module = torch.randn(3, 12).double(), layer.modules[0]
    layer.attach()

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, weights, (x,)).tanh().mean()

    gradients = torch.func.grad(loss)({name: p.detach() for name, p in module.named_parameters()})
    expected = backward(layer, x)[2]
    assert close(layer.join([gradients["weight"], gradients["bias"]]), expected)
    assert uses_factors(layer), "factors inside torch.func were recorded"


# The cached displacement


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0])
def test_a_right_displacement_is_used_and_a_wrong_one_is_not(dtype: torch.dtype, size: float) -> None:
    layer = layer_in_task(nn.Linear(12, 6).to(dtype), "fast", 3)
    constraint, backend = layer.require_constraint(), layer.backend
    layer.set_matrix(constraint.restored(layer.matrix()))
    start = layer.matrix().detach() - constraint.displacement(layer.matrix().detach()) @ constraint.free.mT
    moved = size * torch.randn(6, 3, dtype=dtype)
    layer.set_matrix(start + moved @ constraint.free.mT)
    backend.cached_displacement = right = moved.clone()
    assert backend.displacement() is right
    slightly = (0.999, 1.001) if size == 1 else ()
    for times in (*slightly, 0.5, 1024.0, float("nan")) if size else (float("nan"),):
        backend.cached_displacement = wrong = times * moved
        assert backend.displacement() is not wrong
        assert torch.allclose(backend.displacement(), moved, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_only_plain_steps_with_known_gradients_carry_the_displacement_on() -> None:
    layer = layer_in_task(nn.Linear(12, WIDE).double(), "fast", 3)
    for lr, known, kept in ((0.1, True, True), (None, True, False), (0.1, False, False)):
        layer.modules[0].zero_grad()
        backward(layer, torch.randn(5, 12).double())
        if not known:
            add_noise(layer)
        layer.backend.project_gradient()
        layer.backend.displacement()
        layer.backend.after_step(lr)
        assert (layer.backend.cached_displacement is not None) == kept


@pytest.mark.parametrize(("d", "rank", "freed"), [(2, 1, 0), (5, 5, 0), (9, 2, 1), (9, 8, 3), (12, 12, 11)])
def test_directions_for_checks_are_unit_vectors_with_the_weight_along_them(d: int, rank: int, freed: int) -> None:
    torch.manual_seed(0)
    free = torch.arange(rank) < freed
    pool, start = torch.linalg.qr(torch.randn(d, rank, dtype=torch.float64)).Q, torch.randn(3, d, dtype=torch.float64)
    probes = backends.Probes(Constraint(pool, ~free, free, Anchor.of(start, pool)))
    direction, held = probes.protected
    assert float(direction.norm()) == pytest.approx(1) == float(probes.anywhere.norm())
    protected = pool[:, ~free]
    assert torch.allclose(protected @ (protected.T @ direction), direction, atol=1e-10)
    assert torch.allclose(held, start @ direction)
    if free.any():
        combination, direction, along, rounding = probes.free
        assert float(combination.norm()) == pytest.approx(1)
        assert torch.allclose(direction, pool[:, free] @ combination)
        assert torch.allclose(along, start @ direction)
        assert 0 < rounding < 1e-10
