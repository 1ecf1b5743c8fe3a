"""Subspaces as dense d x d projectors, found by SVD."""

from __future__ import annotations

import torch
from torch import Tensor


def span(vectors: Tensor, tolerance: float = 1e-8) -> Tensor:
    """An orthonormal basis of the span of the columns."""
    left, values, _ = torch.linalg.svd(vectors.double(), full_matrices=False)
    largest = float(values.max()) if values.numel() else 0.0
    return left[:, values > tolerance * max(largest, 1e-300)]


def projector(vectors: Tensor) -> Tensor:
    """The orthogonal projector (d x d) onto the span of the columns."""
    basis = span(vectors)
    return basis @ basis.T


def outside(matrix: Tensor, vectors: Tensor) -> Tensor:
    """The rows of ``matrix`` without their part in the span of the columns of ``vectors``."""
    identity = torch.eye(vectors.shape[0], dtype=torch.float64)
    return matrix.double() @ (identity - projector(vectors))


def largest_angle(one: Tensor, other: Tensor) -> float:
    """The largest principal angle between two column spaces of the same dimension, from its sine."""
    first, second = span(one), span(other)
    assert first.shape == second.shape, f"ranks differ: {first.shape[1]} and {second.shape[1]}"
    if first.shape[1] == 0:
        return 0.0
    rest = second - first @ (first.T @ second)
    return float(torch.asin(torch.linalg.matrix_norm(rest, 2).clamp(max=1.0)))


def effective_weight(weight: Tensor, bases: list[Tensor], scalings: list[Tensor]) -> Tensor:
    """``W + sum of W B_j A_j B_j'``, as it is written."""
    total = weight.clone()
    for basis, matrix in zip(bases, scalings, strict=True):
        total = total + weight @ (basis @ matrix @ basis.T)
    return total
