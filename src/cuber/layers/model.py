"""What a learner changes in a model besides its protected layers: owner, frozen parameters, mode."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from cuber.errors import CuberError, CuberWarning
from cuber.layers.computed import hold_computed, release_computed

_learners: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()

_FROZEN = "_frozen_by_cuber"
"""Attribute of a model that names the parameters which its learner has frozen; copies of the model have it too."""

DROPOUT = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.MultiheadAttention, nn.RNNBase),
)
"""Modules whose mode decides whether they drop, and nothing else."""


def claim(model: nn.Module, learner: object) -> None:
    """Register a learner for every module of a model; raise if another learner has one of them."""
    for module in model.modules():
        if module in _learners and _learners[module]() is not None:
            raise CuberError(
                "this model has a learner already: call its detach() first, "
                "or give the new learner a copy.deepcopy of the model"
            )
    for module in model.modules():
        _learners[module] = weakref.ref(learner)


def release(model: nn.Module) -> None:
    """Remove the learner of a model."""
    for module in model.modules():
        _learners.pop(module, None)


def forget_frozen(model: nn.Module) -> None:
    """Remove from a copy of a model what a learner has done to freeze parameters."""
    release_computed(model)
    for module in model.modules():
        module.__dict__.pop(_FROZEN, None)


class Freezer:
    """Freezes parameters of a model, and unfreezes only what it, or the learner of the model's original, has frozen."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        names = model.__dict__.get(_FROZEN, [])
        self.frozen = [parameter for name, parameter in model.named_parameters() if name in names]
        """Parameters that were frozen here, and not by the user."""
        self.thaw()

    def freeze(self, parameters: Iterable[nn.Parameter]) -> None:
        """Compute no gradients for these parameters until ``thaw()``, and let no training change what they compute."""
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.requires_grad_(False)
                parameter.grad = None
                self.frozen.append(parameter)
        hold_computed(self.model, self.frozen)
        self._write_names()

    def thaw(self) -> None:
        """Unfreeze all that was frozen."""
        for parameter in self.frozen:
            parameter.requires_grad_(True)
        self.frozen = []
        release_computed(self.model)
        self._write_names()

    def warn_of_thawed(self) -> None:
        """Warn of frozen parameters that were unfrozen elsewhere, for example by ``model.requires_grad_(True)``."""
        thawed = [name for name, parameter in self._named() if parameter.requires_grad]
        if thawed:
            warnings.warn(
                f"'{thawed[0]}'{f' (and {len(thawed) - 1} more)' if thawed[1:] else ''} was frozen because it belongs "
                "to another task, but requires_grad is True again; earlier tasks may be forgotten",
                CuberWarning,
                stacklevel=3,
            )

    def names(self) -> list[str]:
        """Return the names of all that is frozen."""
        return [name for name, _ in self._named()]

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        frozen = set(map(id, self.frozen))
        return [(name, parameter) for name, parameter in self.model.named_parameters() if id(parameter) in frozen]

    def _write_names(self) -> None:
        self.model.__dict__.pop(_FROZEN, None)
        if self.frozen:
            self.model.__dict__[_FROZEN] = self.names()


@contextmanager
def evaluation_mode(model: nn.Module, *, dropout: bool = False) -> Iterator[None]:
    """While open, the model is in evaluation mode; then every module has the mode that it had.

    Args:
        model: the model.
        dropout: whether torch's modules with dropout drop all the same, also those that are held in evaluation mode.
    """
    before = {module: module.training for module in model.modules()}
    model.eval()
    for module in before if dropout else ():
        module.training |= isinstance(module, DROPOUT)
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """While open, a model in evaluation mode trains, by its own ``train()``; then all modules have their modes back."""
    before = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        yield
    finally:
        model.eval()  # a ``train()`` of the user's own may change more than modes
        for module, training in before:
            module.training = training
