"""Section 3 of algorithm.md, word for word, with the SVD of R that the paper uses."""

from __future__ import annotations

import torch
from torch import Tensor


def explain(vectors: Tensor, pool: Tensor, threshold: float) -> tuple[list[int], Tensor]:
    """Which old columns a task takes, and the new directions it adds, for input vectors R (d x m)."""
    R, O = vectors.double(), pool.double()  # noqa: E741
    total = float((R * R).sum())
    if total == 0:
        return [], O[:, :0]
    energies = [(float((O[:, k] @ R).square().sum()), "old", k) for k in range(O.shape[1])]
    residual = R - O @ (O.T @ R)
    directions, values, _ = torch.linalg.svd(residual, full_matrices=False)
    energies += [(float(value) ** 2, "new", k) for k, value in enumerate(values)]
    energies.sort(key=lambda entry: -entry[0])
    old: list[int] = []
    new: list[int] = []
    reached = 0.0
    for energy, kind, k in energies:
        (old if kind == "old" else new).append(k)
        reached += energy
        if reached >= threshold * total:
            break
    return sorted(old), directions[:, new]


def subspace(vectors: Tensor, threshold: float) -> Tensor:
    """The first task's basis: the leading left singular vectors of R that hold the fraction of its energy."""
    return explain(vectors, vectors.new_zeros(vectors.shape[0], 0), threshold)[1]
