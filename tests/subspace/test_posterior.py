"""Posterior probabilities of tasks, and vectors that belong to none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cuber.subspace import TaskDensities


def vectors(task: int, count: int = 400, apart: float = 2.0, seed: int = 0) -> Tensor:
    """Normally distributed vectors around a center of each task."""
    generator = torch.Generator().manual_seed(10 * seed + task)
    center = torch.zeros(6)
    center[task] = apart
    return torch.randn(count, 6, generator=generator) + center


def learned(tasks: int = 3, apart: float = 2.0) -> TaskDensities:
    densities = TaskDensities("first")
    for task in range(tasks):
        densities.add_task(task, vectors(task, apart=apart))
    return densities


def test_probabilities_of_normal_vectors_are_those_of_bayes() -> None:
    densities, test = learned(), vectors(1, 4000, seed=1)
    logs = torch.stack([-(test - 2.0 * torch.eye(6)[task]).square().sum(1) / 2 for task in range(3)], 1)
    found = densities.probabilities(densities.log_densities(test))
    assert densities.power == pytest.approx(1, abs=0.3)
    assert float((found - logs.softmax(1)).abs().mean()) < 0.03


def test_too_certain_densities_are_corrected() -> None:
    """Coordinates that are copies of each other count as independent in a density of few directions."""
    densities = TaskDensities("first")
    noise = torch.randn(3, 400, 40, generator=torch.Generator().manual_seed(0))
    for task in range(3):
        scale = 0.2 + torch.rand(400, 1, generator=torch.Generator().manual_seed(task)) * 3  # heavy tails
        densities.add_task(task, noise[task] * scale + 0.5 * task)
    assert densities.power < 0.7
    single = learned(1)
    assert single.probabilities(single.log_densities(vectors(0))).tolist() == [[1.0]] * 400


def test_a_single_odd_vector_does_not_decide_how_certain_the_others_are() -> None:
    densities, odd = TaskDensities("first"), vectors(1)
    odd[0] = vectors(0)[0] + torch.tensor([30.0, 0, 0, 0, 0, 0])  # in the density of task 0, by far
    for task, own in enumerate([vectors(0), odd, vectors(2)]):
        densities.add_task(task, own)
    assert densities.power == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_own_vectors_are_not_accepted_at_the_promised_rate(rate: float) -> None:
    densities = learned()
    for task in range(3):
        logs = densities.log_densities(vectors(task, 20_000, seed=2))
        refused = float((~densities.accepted(logs, rate)[:, task]).double().mean())
        assert refused == pytest.approx(rate, abs=0.4 * rate + 0.005)


def test_the_rate_also_holds_where_most_coordinates_are_nearly_always_constant() -> None:
    """As the pixels at the border of a digit; a density of fewer vectors must not be a broader one there."""
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(6000, 60, generator=generator)
    rare = torch.randn(6000, 300, generator=generator) * (torch.rand(6000, 300, generator=generator) < 2e-5)
    data = torch.cat([dense, rare], 1)
    densities = TaskDensities("first")
    densities.add_task(0, data[:1000])
    logs = densities.log_densities(data[1000:])
    assert float((~densities.accepted(logs, 0.02)).double().mean()) < 0.03


def test_none_is_refused_at_rate_0_and_far_vectors_at_any_other() -> None:
    densities = learned()
    far = densities.log_densities(vectors(0) + 100)
    assert bool(densities.accepted(far, 0.0).all())
    assert not bool(densities.accepted(far, 0.01).any())
    blank = densities.log_densities(torch.full((1, 6), 0.0) + torch.tensor([2.0, 0, 0, 0, 0, 0]))  # too usual
    assert not bool(densities.accepted(blank, 0.05)[0, 0])


def test_a_task_that_is_added_again_replaces_the_first_attempt() -> None:
    densities = learned(2)
    densities.add_task(1, vectors(4))
    densities.add_task(1, vectors(1))
    once = learned(2)
    assert torch.equal(densities.log_densities(vectors(1)), once.log_densities(vectors(1)))
    assert densities.power == once.power


def test_a_task_without_vectors_or_with_others_is_never_inferred() -> None:
    densities = learned(2)
    densities.add_task(2, None)
    densities.add_task(3, torch.randn(50, 9, generator=torch.Generator().manual_seed(0)))
    found = densities.probabilities(densities.log_densities(vectors(1)))
    assert bool((found[:, 2:] == 0).all())
    assert torch.equal(densities.log_densities(vectors(1))[:, :2], learned(2).log_densities(vectors(1)))
    assert densities.fits(9)
    assert not densities.fits(7)


def test_tasks_that_were_kept_without_densities_keep_their_numbers() -> None:
    densities = TaskDensities("first")
    densities.add_task(2, vectors(2))
    assert densities.densities[:2] == [None, None]
    found = densities.probabilities(densities.log_densities(vectors(2)))
    assert found[:, 2].tolist() == [1.0] * 400


@pytest.mark.parametrize(("count", "refuses"), [(98, False), (99, True), (198, True), (400, True)])
def test_none_of_these_needs_one_sample_per_false_alarm(count: int, refuses: bool) -> None:
    densities = TaskDensities("first")
    densities.add_task(0, vectors(0, count))
    far = densities.log_densities(vectors(0, 1) + 100)
    assert bool(densities.accepted(far, 0.01)) is not refuses


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e-20, 1e6])
def test_vectors_that_are_all_equal_belong_to_their_task(scale: float) -> None:
    """All scores are equal then, but for their rounding to float32."""
    densities, constant = TaskDensities("first"), scale * torch.linspace(1, 2, 6).expand(400, 6)
    densities.add_task(0, constant)
    assert bool(densities.accepted(densities.log_densities(constant), 0.01).all())
