"""Compile the forward pass of training steps."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import nn

from cuber.core.learner import Method
from cuber.errors import CuberError
from cuber.networks.heads import heads_of


class Compiled:
    """Context manager in which a model's forward pass is the compiled one; made anew for each task.

    Torch compiles at the first call, so its errors are raised there, as a CuberError.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        torch.compiler.reset()  # code compiled for earlier tasks counts towards torch's recompile limit
        try:
            # With dynamic shapes the code depends on which batch size comes second, which differs in a resumed run.
            self._forward: Any = torch.compile(model.forward, dynamic=False)
        except RuntimeError as error:
            raise _cannot_compile(error) from error
        self._replaced: list[Any] = []

    def __enter__(self) -> None:
        self._replaced = [self._model.__dict__["forward"]] if "forward" in self._model.__dict__ else []
        self._model.forward = self._forward

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._model.forward
        for forward in self._replaced:  # set by the learner, where the model itself is a protected layer
            self._model.forward = forward
        if isinstance(error, torch._dynamo.exc.TorchDynamoException):
            raise _cannot_compile(error) from error


def check_can_compile(learner: Method) -> None:
    """Raise a CuberError where nearly every batch would be compiled anew."""
    if learner.joint and heads_of(learner.model):
        raise CuberError(
            f"compile does not work with {type(learner).__name__} and a head for each task, because the number of "
            "samples of each head changes from batch to batch: train without it"
        )


def _cannot_compile(error: Exception) -> CuberError:
    reason = getattr(error, "inner_exception", error)
    line = str(reason).strip().split("\n")[0]
    return CuberError(
        f"compile does not work here (torch.compile: {type(reason).__name__}: {line}): install a C++ compiler (g++, or "
        "the one that CXX names), or train without it"
    )
