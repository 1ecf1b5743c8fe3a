"""The scalings of several old tasks, learned as one, are what each would have learned."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cuber.subspace import Scaling, supports_of
from tests.oracles.dense import effective_weight

seeds = st.integers(0, 2**31)


def pool_of(dimension: int, size: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(dimension, size, dtype=torch.float64, generator=generator)).Q


def drawn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def scaling_of(
    seed: int, dimension: int = 9, tasks: int = 2, outputs: int = 2, free: int = 0
) -> tuple[Scaling, Tensor]:
    """A scaling that has learned something, of tasks that overlap, and its weight; supports where outputs are few."""
    generator = torch.Generator().manual_seed(seed)
    basis = pool_of(dimension, dimension - 1, generator)
    owned = torch.rand(tasks, dimension - 1, generator=generator) < 0.7
    weight = drawn(generator, outputs, dimension)
    supports = supports_of(weight @ basis, owned, torch.arange(dimension - 1) < free)
    made = Scaling(basis, owned, supports, like=weight, train=True)
    made.matrix.data = drawn(generator, *made.matrix.shape) * (made.share > 0)
    return made, weight


@given(seeds, st.integers(1, 4), st.sampled_from([1, 5]))
def test_the_effective_weight_is_the_formula_as_written(seed: int, tasks: int, outputs: int) -> None:
    made, weight = scaling_of(seed, 12, tasks, outputs)
    expected = effective_weight(weight, [made.basis], [made.dense()])
    assert torch.allclose(made.weight(weight, weight @ made.basis), expected, atol=1e-10)


@pytest.mark.parametrize("outputs", [2, 9])
def test_a_scaling_that_has_learned_nothing_changes_no_bit(outputs: int) -> None:
    made, weight = scaling_of(0, outputs=outputs)
    made.matrix.data.zero_()
    assert torch.equal(made.weight(weight, weight @ made.basis), weight)


def test_a_scaling_moves_to_the_precision_of_its_weight() -> None:
    (moving, weight), parameter = (made := scaling_of(0)), made[0].matrix
    assert moving.supports
    assert moving.fits(weight)
    assert not moving.fits(weight.float())
    moving.move(weight.float())
    assert moving.fits(weight.float())
    assert moving.matrix is parameter
    assert moving.weight(weight.float(), weight.float() @ moving.basis).dtype == moving.matrix.dtype == torch.float32


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
@pytest.mark.parametrize("outputs", [2, 9])
def test_a_copy_is_independent_and_learns_the_same_entries(duplicate: Callable[[Any], Any], outputs: int) -> None:
    made, weight = scaling_of(0, tasks=1, outputs=outputs)
    twin = duplicate(made)
    assert torch.equal(twin.dense(), made.dense())
    for one in (made, twin):
        one.weight(weight, weight @ one.basis).square().sum().backward()
    assert torch.equal(made.matrix.grad, twin.matrix.grad)
    assert not made.matrix.grad[made.share == 0].any()
    twin.matrix.data.zero_()
    assert made.dense().any()


def test_what_is_kept_does_not_change_with_the_scaling() -> None:
    made, _ = scaling_of(0)
    learned, expected = made.learned([0, 1]), made.matrix.detach().clone()
    made.matrix.data.zero_()
    assert torch.equal(learned.matrix, expected)
    assert learned.tasks == [0, 1]


def descend(
    weight: Tensor, basis: Tensor, owned: Tensor, free: Tensor, xs: list[Tensor], momentum: float
) -> tuple[Tensor, list[float]]:
    """Learn a separate A_j for each task, r_j x r_j, as in the papers; return their sum, and gradient norms."""
    bases = [basis[:, columns] for columns in owned]
    matrices = [nn.Parameter(weight.new_zeros(b.shape[1], b.shape[1])) for b in bases]
    optimizer = torch.optim.SGD(matrices, lr=0.05, momentum=momentum)
    norms = []
    for position, x in enumerate(xs):
        optimizer.zero_grad()
        (x @ effective_weight(weight, bases, matrices).T).tanh().sum().backward()  # type: ignore[arg-type]
        norms.append(float(nn.utils.clip_grad_norm_(matrices, 5.0)))
        optimizer.step()
        weight = weight + move(position, len(weight), int(free.sum())) @ basis[:, free].T
    total = weight.new_zeros(basis.shape[1], basis.shape[1])
    for columns, matrix in zip(owned, matrices, strict=True):
        total += columns.to(basis).diag()[:, columns] @ matrix.detach() @ columns.to(basis).diag()[columns]
    return total, norms


def move(position: int, outputs: int, free: int) -> Tensor:
    """How the weight moves along its free columns after a step."""
    return 0.1 * drawn(torch.Generator().manual_seed(position), outputs, free)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.sampled_from([0.0, 0.9]), seeds)
def test_one_matrix_learns_what_separate_scalings_of_each_task_would_have_learned(
    outputs: int, tasks: int, free: int, momentum: float, seed: int
) -> None:
    """Gradient descent with clipped gradients, while the weight moves along its free columns."""
    generator = torch.Generator().manual_seed(seed)
    basis, start = pool_of(20, 18, generator), drawn(generator, outputs, 20)
    owned, movable = torch.rand(tasks, 18, generator=generator) < 0.8, torch.arange(18) < free
    xs = [drawn(generator, 5, 20) for _ in range(12)]
    expected, expected_norms = descend(start, basis, owned, movable, xs, momentum)
    made = Scaling(basis, owned, supports_of(start @ basis, owned, movable), like=start, train=True)
    optimizer = torch.optim.SGD([made.matrix], lr=0.05, momentum=momentum)
    weight, norms = start, []
    for position, x in enumerate(xs):
        optimizer.zero_grad()
        (x @ made.weight(weight, weight @ basis).T).tanh().sum().backward()
        norms.append(float(nn.utils.clip_grad_norm_([made.matrix], 5.0)))
        optimizer.step()
        weight = weight + move(position, outputs, free) @ basis[:, movable].T
    assert norms == pytest.approx(expected_norms)
    assert torch.allclose(made.dense(), expected, atol=1e-9)


def test_supports_that_save_nothing_are_not_used() -> None:
    owned = torch.arange(8).unsqueeze(0) < 7
    for outputs, free, rows in ((7, 0, None), (6, 0, 6), (4, 3, None), (4, 2, 6), (3, 3, 6)):
        supports = supports_of(torch.randn(outputs, 8), owned, torch.arange(8) < free)
        assert [support.shape[1] for support in supports] == ([] if rows is None else [rows])
        for support in supports:
            assert torch.allclose(support.T @ support, torch.eye(support.shape[1]), atol=1e-6)
            assert not support[7].any()
