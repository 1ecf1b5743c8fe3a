"""Old tasks' scalings, learnt as one, are what each would have learnt; and none at all while S is 0."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cuber.subspace import Held, PartlyHeld, Reading, Scaling, supports_of
from tests.oracles.dense import effective_weight

seeds = st.integers(0, 2**31)


def pool_of(dimension: int, size: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(dimension, size, dtype=torch.float64, generator=generator)).Q


def drawn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def scaling(seed: int, dimension: int = 9, tasks: int = 2, outputs: int = 2, free: int = 0) -> Scaling:
    """One that has learnt something, of tasks that overlap; with supports where there are few outputs."""
    generator = torch.Generator().manual_seed(seed)
    basis = pool_of(dimension, dimension - 1, generator)
    owned = torch.rand(tasks, dimension - 1, generator=generator) < 0.7
    weight = drawn(generator, outputs, dimension)
    movable = torch.arange(dimension - 1) < free
    made = Scaling.identity(basis, owned, supports_of(weight, basis, owned, movable), like=weight)
    made.matrix.data = drawn(generator, *made.matrix.shape) * (made.root > 0)
    return made


@given(seeds, st.integers(1, 4), st.sampled_from([1, 5]))
def test_the_scaled_weight_is_the_formula_as_written(seed: int, tasks: int, outputs: int) -> None:
    made, weight = scaling(seed, 12, tasks, outputs), torch.randn(4, 12, dtype=torch.float64)
    expected = effective_weight(weight, [made.basis], [made.dense()])
    assert torch.allclose(made.weight(weight), expected, atol=1e-10)


@given(seeds, st.integers(1, 4), st.sampled_from([1, 5]), st.integers(1, 7))
def test_scaling_the_input_is_scaling_the_weight(seed: int, tasks: int, outputs: int, batch: int) -> None:
    made, weight, x = scaling(seed, 12, tasks, outputs), torch.randn(4, 12).double(), torch.randn(batch, 12).double()
    assert torch.allclose(x @ made.weight(weight).T, made.input(x) @ weight.T, atol=1e-10)


def test_both_sides_give_the_same_gradients() -> None:
    made, x = scaling(0), torch.randn(3, 9, dtype=torch.float64)
    weight = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    from_weight, from_input = (
        torch.autograd.grad(y.square().sum(), [weight, made.matrix])
        for y in (x @ made.weight(weight).T, made.input(x) @ weight.T)
    )
    for one, other in zip(from_weight, from_input, strict=True):
        assert torch.allclose(one, other, atol=1e-10)


@pytest.mark.parametrize("side", ["weight", "input"])
def test_a_scaling_that_has_learnt_nothing_changes_no_bit(side: str) -> None:
    matrix, made = torch.randn(7, 9), scaling(0)
    fresh = Scaling.identity(made.basis, made.owned, like=matrix)
    assert torch.equal(getattr(fresh, side)(matrix), matrix)


def test_a_scaling_follows_its_weight_to_another_precision() -> None:
    moving, weight = scaling(0), torch.randn(3, 9)
    moving.weight(weight.double())
    moving.follow(weight)
    assert moving.basis.dtype == moving.matrix.dtype == torch.float32
    assert moving.weight(weight).dtype == moving.input(weight).dtype == torch.float32


def test_a_copy_is_one_of_its_own() -> None:
    made = scaling(0)
    twin = copy.deepcopy(made)
    assert torch.equal(twin.dense(), made.dense())
    twin.matrix.data.zero_()
    assert made.dense().any()


def descend(
    weight: Tensor, basis: Tensor, owned: Tensor, free: Tensor, xs: list[Tensor], momentum: float
) -> tuple[Tensor, list[float]]:
    """Separate A_j, one per task, r_j x r_j, as the papers have them: their sum in the end, and gradient norms."""
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
def test_what_is_learnt_at_once_is_what_each_task_s_own_scaling_would_have_learnt(
    outputs: int, tasks: int, free: int, momentum: float, seed: int
) -> None:
    """Steps of gradient descent, clipped by the norm, the weight moving along its free columns all the while."""
    generator = torch.Generator().manual_seed(seed)
    basis, start = pool_of(20, 18, generator), drawn(generator, outputs, 20)
    owned, movable = torch.rand(tasks, 18, generator=generator) < 0.8, torch.arange(18) < free
    xs = [drawn(generator, 5, 20) for _ in range(12)]
    expected, expected_norms = descend(start, basis, owned, movable, xs, momentum)
    made = Scaling.identity(basis, owned, supports_of(start, basis, owned, movable), like=start)
    optimizer = torch.optim.SGD([made.matrix], lr=0.05, momentum=momentum)
    weight, norms = start, []
    for position, x in enumerate(xs):
        optimizer.zero_grad()
        (made.input(x) @ weight.T).tanh().sum().backward()
        norms.append(float(nn.utils.clip_grad_norm_([made.matrix], 5.0)))
        optimizer.step()
        weight = weight + move(position, outputs, free) @ basis[:, movable].T
    assert norms == pytest.approx(expected_norms)
    assert torch.allclose(made.dense(), expected, atol=1e-9)


def test_supports_that_save_nothing_are_not_used() -> None:
    basis, owned = torch.eye(10)[:, :8], torch.arange(8).unsqueeze(0) < 7
    for outputs, free, rows in ((7, 0, None), (6, 0, 6), (4, 3, None), (4, 2, 6), (3, 3, 6)):
        supports = supports_of(torch.randn(outputs, 10), basis, owned, torch.arange(8) < free)
        assert [support.shape[1] for support in supports] == ([] if rows is None else [rows])
        for support in supports:
            assert torch.allclose(support.T @ support, torch.eye(support.shape[1]), atol=1e-6)
            assert not support[7].any()


@given(seeds, st.integers(0, 4), st.integers(1, 5))
def test_what_is_read_of_a_held_weight_is_what_it_is(seed: int, free: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pool, anchor = pool_of(9, 6, generator), drawn(generator, outputs, 9)
    held = PartlyHeld(pool, anchor, pool[:, :free]) if free else Held.of(anchor, pool)
    outside = drawn(generator, outputs, 9) @ (torch.eye(9).double() - pool @ pool.T)
    weight = anchor + drawn(generator, outputs, free) @ held.free.T + outside
    still = pool[:, free:] @ drawn(generator, 6 - free, 2)
    left = torch.cat([pool[:, :free].flip(1), still, pool[:, : free // 2]], dim=1)
    reading = Reading(held, left)
    moved = held.moved(weight) if isinstance(held, PartlyHeld) else held.still
    assert torch.allclose(reading.after(moved), weight @ left, atol=1e-10)
    assert reading.turns == (free > 0)
    turn, rows = held.free.T @ left, drawn(generator, 3, left.shape[1])
    assert torch.allclose(reading.back(rows), rows @ turn.T, atol=1e-10)
    assert torch.allclose(reading.times(rows.T), turn @ rows.T, atol=1e-10)
    assert torch.allclose(reading.plus(rows, rows @ turn.T), rows + rows @ turn.T @ turn, atol=1e-10)


@given(seeds, st.integers(0, 5), st.integers(1, 9))
def test_a_scaling_reads_free_columns_or_what_is_orthogonal_to_them(seed: int, free: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pool, weight = pool_of(40, 30, generator), drawn(generator, outputs, 40)
    owned, may_move = torch.rand(2, 30, generator=generator) < 0.8, torch.arange(30) < free
    owned[0] |= may_move  # nothing is free that no selected task owns
    scaling = Scaling.identity(pool, owned, supports_of(weight, pool, owned, may_move), like=weight)
    turn = pool[:, may_move].T @ scaling.left
    assert torch.allclose(turn, (turn > 0.5).double(), atol=1e-10)
    assert bool((turn > 0.5).any(1).all())
