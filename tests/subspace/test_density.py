"""Densities of input vectors against dense normal distributions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cuber.subspace import Density
from tests.oracles import density as oracle


def vectors(count: int, dimension: int, seed: int = 0) -> Tensor:
    """Vectors with a mean, and with variances that differ by direction."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dimension, dimension, generator=generator) * torch.logspace(0, -2, dimension)
    return torch.randn(count, dimension, generator=generator) @ mixing.T + torch.randn(dimension, generator=generator)


@given(count=st.integers(1, 90), dimension=st.integers(1, 30), seed=st.integers(0, 100))
def test_the_log_density_is_that_of_the_dense_normal_distribution(count: int, dimension: int, seed: int) -> None:
    density = Density.fit(vectors(count, dimension, seed))
    others = vectors(7, dimension, seed + 1)
    torch.testing.assert_close(density.log_density(others), oracle.log_density(density, others), rtol=1e-8, atol=1e-6)


def test_with_many_vectors_the_variances_are_those_of_the_vectors() -> None:
    data = vectors(20_000, 12)
    density = Density.fit(data, rank=12)
    torch.testing.assert_close(oracle.covariance(density), torch.cov(data.T).double(), rtol=1e-3, atol=1e-3)
    truncated = oracle.covariance(Density.fit(data, rank=3))  # the noise holds what is left out
    torch.testing.assert_close(truncated.trace(), data.var(0).sum().double(), rtol=1e-3, atol=0)


def test_it_does_not_matter_how_vectors_are_shifted_rotated_or_ordered() -> None:
    data, other = vectors(200, 8), vectors(5, 8, seed=1)
    scores = Density.fit(data).log_density(other)
    torch.testing.assert_close(Density.fit(data + 3).log_density(other + 3), scores, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(Density.fit(data.flip(0)).log_density(other), scores, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(Density.fit(data.flip(1)).log_density(other.flip(1)), scores, rtol=1e-4, atol=1e-4)


def test_a_broad_density_is_not_favored() -> None:
    """Of two tasks, the second with all directions of the first and more: each sample has its own task."""
    narrow, broad = vectors(400, 40), 3 * vectors(400, 40, seed=1)
    narrow[:, 20:] *= 0.01
    densities = [Density.fit(data[:300]) for data in (narrow, broad)]
    for task, data in enumerate((narrow, broad)):
        scores = torch.stack([density.log_density(data[300:]) for density in densities], 1)
        assert bool((scores.argmax(1) == task).all())


def test_constant_vectors_and_single_ones_have_a_density() -> None:
    for data in (torch.ones(50, 6), torch.zeros(50, 6), vectors(1, 6), vectors(2, 6)):
        scores = Density.fit(data).log_density(torch.cat([data[:1], data[:1] + 1]))
        assert bool(scores.isfinite().all())
        assert scores[0] > scores[1]


@pytest.mark.parametrize(("dimension", "count"), [(5, 100), (50, 200), (400, 200), (2000, 200)])
def test_noise_has_no_principal_directions_and_what_stands_out_of_it_has(dimension: int, count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, dimension, generator=generator)
    assert Density.fit(noise).factors.shape[1] <= 1  # the largest variance of noise may be above the edge by chance
    outstanding = 3 * (1 + (dimension / count) ** 0.5) * torch.randn(count, 3, generator=generator)
    structured = torch.cat([outstanding, noise[:, 3:]], dim=1)
    assert 3 <= Density.fit(structured).factors.shape[1] <= 4


def test_vectors_that_a_density_was_fitted_to_are_hardly_likelier_than_others() -> None:
    noise = torch.randn(600, 400, generator=torch.Generator().manual_seed(0))
    density = Density.fit(noise[:200])
    own, others = density.log_density(noise[:200]), density.log_density(noise[200:])
    assert own.mean() - others.mean() < 0.5 * others.std()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_vectors_of_any_precision_are_taken(dtype: torch.dtype) -> None:
    noise = torch.randn(200, 10, generator=torch.Generator().manual_seed(0))
    data = noise * torch.tensor([20.0, 15.0, 10.0] + [1.0] * 7)  # no precision changes how many directions stand out
    exact, rounded = Density.fit(data), Density.fit(data.to(dtype))
    assert rounded.mean.dtype == torch.float32
    torch.testing.assert_close(
        rounded.log_density(data[:20].to(dtype)), exact.log_density(data[:20]), rtol=0.02, atol=1.0
    )
