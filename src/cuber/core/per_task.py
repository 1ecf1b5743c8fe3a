"""Parameters that every task has its own values of, as it has its own running statistics of batch norm.

They are the trained parameters that no layer rule covers and that are vectors: gains and biases of any normalization
layer, scales of residual branches, a class token. They are few, and old tasks keep theirs exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from cuber.core.settings import setting


def norm_parameters_setting() -> Any:
    """Return the setting of methods that would otherwise freeze these parameters or hold them back."""
    return setting(
        "task",
        "gains and biases of normalization layers, and other vectors that no layer rule covers: kept per task, or "
        "shared by all tasks",
        choices=("task", "shared"),
    )


def vectors(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Return the names of those parameters that are vectors."""
    return [name for name in names if is_vector(model.get_parameter(name))]


def is_vector(tensor: Tensor) -> bool:
    """Return whether at most one dimension is larger than 1.

    >>> is_vector(torch.zeros(1, 1, 8)), is_vector(torch.zeros(())), is_vector(torch.zeros(2, 8))
    (True, True, False)
    """
    return sum(size > 1 for size in tensor.shape) <= 1
