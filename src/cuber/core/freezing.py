"""Whose a model is: no two learners on one, and what a learner has frozen can be told from what the user has."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn

from cuber.errors import CuberError, CuberWarning

_learners: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()

_FROZEN = "_frozen_by_cuber"
"""The attribute of a model that names the parameters which its learner has frozen; copies of the model have it too."""


def claim(model: nn.Module, learner: object) -> None:
    """Take hold of every module of a model; raise a sentence where another learner has."""
    for module in model.modules():
        holder = _learners.get(module)
        if holder is not None and holder() is not None:
            raise CuberError(
                "this model has a learner already: call its detach() first, "
                "or give the new learner a copy.deepcopy of the model"
            )
    for module in model.modules():
        _learners[module] = weakref.ref(learner)


def release(model: nn.Module) -> None:
    """Let go of a model."""
    for module in model.modules():
        _learners.pop(module, None)


class Freezer:
    """Freezes parameters of a model, and thaws those that it, or a learner of the model's original, has frozen."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._frozen: list[nn.Parameter] = [
            model.get_parameter(name) for name in model.__dict__.get(_FROZEN, []) if _has_parameter(model, name)
        ]
        self.thaw()

    def freeze(self, parameters: Iterable[nn.Parameter]) -> None:
        """No gradients for these, until thawed."""
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.requires_grad_(False)
                parameter.grad = None
                self._frozen.append(parameter)
        self._leave_word()

    def thaw(self) -> None:
        """Everything trains again that would without us."""
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self._frozen = []
        self._leave_word()

    def warn_of_thawed(self) -> None:
        """Others may thaw what we have frozen (``model.requires_grad_(True)``): worth a word."""
        ours = set(map(id, self._frozen))
        thawed = [name for name, p in self.model.named_parameters() if id(p) in ours and p.requires_grad]
        if thawed:
            warnings.warn(
                f"'{thawed[0]}'{f' (and {len(thawed) - 1} more)' if thawed[1:] else ''} is not for this task to train "
                "and was frozen, but somebody has set requires_grad: other tasks may lose by it",
                CuberWarning,
                stacklevel=3,
            )

    def _leave_word(self) -> None:
        frozen = set(map(id, self._frozen))
        names = [name for name, parameter in self.model.named_parameters() if id(parameter) in frozen]
        self.model.__dict__.pop(_FROZEN, None)
        if names:
            self.model.__dict__[_FROZEN] = names


def _has_parameter(model: nn.Module, name: str) -> bool:
    return any(name == known for known, _ in model.named_parameters())
