"""What is measured on a task: classification accuracy, a function, or a torchmetrics object."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from cuber.core.device import float64_zero
from cuber.errors import CuberError
from cuber.subspace import in_float64


@dataclass(frozen=True)
class Metric:
    """A metric of any targets, for ``cuber.learn(..., metric=)`` and ``cuber.Stream(..., metric=)``.

    Args:
        function: ``function(output, target)``, a mean over the samples of a batch, which is averaged over batches; or a
            torchmetrics object, which sees all batches of a split before it computes its value.
        higher_is_better: Whether higher values are better.
        name: Shown in results (default: the name of the function).

    >>> Metric(torch.nn.functional.mse_loss, higher_is_better=False).name
    'mse_loss'
    """

    function: Callable[[Any, Any], Any]
    higher_is_better: bool
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise CuberError(f"a metric is a function of output and target, not a {type(self.function).__name__}")
        if not isinstance(self.higher_is_better, bool):
            raise CuberError(f"higher_is_better of metric '{name_of(self.function)}' must be True or False")
        object.__setattr__(self, "name", self.name or name_of(self.function))

    @property
    def accumulates(self) -> bool:
        """Whether it is an object that sees all batches, as those of torchmetrics are."""
        return is_accumulator(self.function)

    def start(self, device: torch.device) -> Mean | Accumulated:
        """Return an object that ``add(output, target)`` is called on for each batch, and then ``total(samples)``."""
        return Accumulated(self, device) if self.accumulates else Mean(self, device)

    def of_batch(self, output: Any, target: Tensor) -> Any:
        """Return the value of a batch times its number of samples."""
        value = self.number(self.function(output, target))  # int8 or float16 may not hold the product
        return (in_float64(value) if isinstance(value, Tensor) else float(value)) * len(target)

    def number(self, value: Any) -> Any:
        """Return a value of the metric; raise a CuberError unless it is one number."""
        if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
            return value.detach().reshape(())
        if isinstance(value, Real):  # numpy's numbers too
            return value
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise CuberError(f"metric '{self.name}' returns {what}: it must return one number, the mean over the batch")


class Accuracy(Metric):
    """The percentage of samples whose largest output is at their label."""

    def of_batch(self, output: Any, target: Tensor) -> Any:
        return self.function(output, target)


ACCURACY = Accuracy(lambda output, target: (output.argmax(1) == target).sum(), True, "accuracy")


class Mean:
    """A function of each batch, averaged over samples."""

    def __init__(self, metric: Metric, device: torch.device) -> None:
        self.metric = metric
        self.sum = float64_zero(device)

    def add(self, output: Any, target: Tensor) -> None:
        value = self.metric.of_batch(output, target)
        self.sum += value.to(self.sum) if isinstance(value, Tensor) else float(value)

    def total(self, samples: int) -> float:
        """Return the value times the number of samples."""
        return (100 if isinstance(self.metric, Accuracy) else 1) * float(self.sum)


class Accumulated:
    """A copy of a torchmetrics object."""

    def __init__(self, metric: Metric, device: torch.device) -> None:
        self.metric = metric
        function: Any = metric.function
        self.copy = copy.deepcopy(function)
        self.copy.reset()
        self.copy.sync_on_compute = False  # every process sees all batches
        if hasattr(self.copy, "to"):
            self.copy = self.copy.to(device)

    def add(self, output: Any, target: Tensor) -> None:
        self.copy.update(output, target)

    def total(self, samples: int) -> float:
        """Return the value times the number of samples."""
        return float(self.metric.number(self.copy.compute())) * samples


def as_metric(given: Any) -> Metric:
    """Return what was given as ``metric=`` as a Metric; None is accuracy."""
    if given is None:
        return ACCURACY
    if isinstance(given, Metric):
        return given
    if not callable(given) or isinstance(given, type):
        raise CuberError(f"metric must be a cuber.Metric or a torchmetrics object, not {given!r:.60}")
    higher = getattr(given, "higher_is_better", None)
    if not isinstance(higher, bool):
        raise CuberError(
            f"metric '{name_of(given)}' does not say whether higher is better: pass "
            f"cuber.Metric({name_of(given)}, higher_is_better=...) with True or False"
        )
    return Metric(given, higher)


def is_accumulator(value: Any) -> bool:
    """Return whether a value has the methods of a torchmetrics object."""
    return all(callable(getattr(value, name, None)) for name in ("update", "compute", "reset"))


def name_of(function: Any) -> str:
    """Return the name of a function, or of the type of an object."""
    function = getattr(function, "func", function)  # functools.partial
    return getattr(function, "__name__", None) or type(function).__name__
