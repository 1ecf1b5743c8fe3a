"""How the forward passes of training and tests are computed: in which precision, and whether compiled."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

import torch
from torch import nn

from cuber.errors import CuberError

PRECISIONS = {"float32": None, "bf16": torch.bfloat16}
"""What products are computed in, by name; None: in what the weights are."""


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """While open, forward passes are computed in a precision; the weights stay what they are."""
    dtype = PRECISIONS[precision]
    if dtype is None:
        return contextlib.nullcontext()
    try:
        return torch.autocast(device.type, dtype)
    except RuntimeError as error:
        raise CuberError(f"precision '{precision}' cannot work on {device}: {_first_line(error)}") from error


class Compiled:
    """A model whose forward pass is the compiled one while this is open; for one task, which may change the model.

    Torch compiles when it is first called, so that is where it fails, if it does: as one sentence.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # What was compiled for other tasks counts towards the limit beyond which torch compiles no more.
        torch.compiler.reset()
        try:
            # Code for any size would be made at the second size seen, and a run that goes on may see them otherwise.
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
        for forward in self._replaced:  # a learner's own, where the model is a protected layer itself
            self._model.forward = forward
        if isinstance(error, torch._dynamo.exc.TorchDynamoException):
            raise _cannot_compile(error) from error


def _cannot_compile(error: Exception) -> CuberError:
    reason = getattr(error, "inner_exception", error)
    return CuberError(
        f"compile does not work here, by torch.compile's own words: {type(reason).__name__}: {_first_line(reason)}; "
        "it needs a C++ compiler (g++, or the one that CXX names) and a model that it can follow, else train without it"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
