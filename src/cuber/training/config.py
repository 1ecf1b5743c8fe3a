"""How a network is trained on each task: the numbers, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuber.core.settings import is_number, short
from cuber.errors import CuberError, unknown

PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of the training loop; a sentence for each value that makes no sense."""

    epochs: int
    """Passes over a task's training data; at most, with early stopping."""
    lr: float
    batch_size: int = 64
    patience: int | None = None
    """Epochs without a new best validation loss until the learning rate is divided; None: no early stopping."""
    factor: float = 2.0
    """What the learning rate is then divided by."""
    floor: float = 1e-5
    """TrainingConfig stops when the learning rate falls below this."""
    evaluation_batch_size: int = 256
    precision: str = "float32"
    """Of the products in forward passes; "bf16": by torch's autocast. Weights and projections stay float32."""
    compile: bool = False
    """Whether the forward pass of each step is compiled by torch.compile."""

    def __post_init__(self) -> None:
        _whole("epochs", self.epochs)
        _whole("batch_size", self.batch_size)
        _whole("evaluation_batch_size", self.evaluation_batch_size)
        if self.patience is not None:
            _whole("patience", self.patience)
        _number("lr", self.lr, above=0)
        _number("factor", self.factor, above=1)
        _number("floor", self.floor, above=0)
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            raise unknown("precision", str(self.precision), PRECISIONS)
        if not isinstance(self.compile, bool):
            raise CuberError(f"compile must be true or false, not {short(self.compile)}")


def _whole(name: str, value: Any) -> None:
    if not is_number(value, whole=True) or value < 1:
        raise CuberError(f"{name} must be a whole number of at least 1, not {short(value)}")


def _number(name: str, value: Any, above: float) -> None:
    if not is_number(value) or value <= above:
        raise CuberError(f"{name} must be a number above {above:g}, not {short(value)}")
