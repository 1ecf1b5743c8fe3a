"""What can be known to fail before the first step."""

from __future__ import annotations

import torch
from torch import Tensor

from cuber.core.learner import Method
from cuber.errors import CuberError
from cuber.layers import evaluation_mode
from cuber.networks.heads import heads_of
from cuber.streams import FixedLoader, Stream, Task


def check_fit(learner: Method, stream: Stream) -> None:
    """Raise a sentence unless this learner's model can take every task of the stream."""
    if not isinstance(learner, Method):
        hint = f": give cuber.CUBER(model), not a {type(learner).__name__}"
        raise CuberError(f"learn takes a method around a model{hint}")
    if not isinstance(stream, Stream):
        raise CuberError(f"learn takes a cuber.Stream, not a {type(stream).__name__}")
    if learner.tasks or learner.task is not None:
        raise CuberError("this learner has learnt something already: give learn a new one, or use a loop of your own")
    if learner.forward is not None:
        raise CuberError("learn computes loss_fn(model(x), y) itself: a learner with forward= needs a loop of your own")
    _check_heads(learner, stream)
    _check_outputs(learner, stream)


def _check_heads(learner: Method, stream: Stream) -> None:
    heads = heads_of(learner.model)
    if not heads and len(stream) > 1 and not stream.shared_head:
        raise CuberError(
            f"each task of stream '{stream.name}' has a head of its own, but the model has one for all: "
            "build a cuber.MultiHead(backbone, ...), or say Stream(..., shared_head=True)"
        )
    for multi_head in heads:
        if len(multi_head.heads) < len(stream):
            raise CuberError(
                f"the model has {len(multi_head.heads)} heads, but stream '{stream.name}' has {len(stream)} tasks: "
                "name all of them in MultiHead's classes_per_task"
            )


def _check_outputs(learner: Method, stream: Stream) -> None:
    model, heads = learner.model, heads_of(learner.model)
    selected = [multi_head.task for multi_head in heads]
    try:
        with torch.no_grad(), evaluation_mode(model):
            for position, task in enumerate(stream):
                for multi_head in heads:
                    multi_head.select_task(position)
                _check_output(learner, position, task)
    finally:
        for multi_head, before in zip(heads, selected, strict=True):
            multi_head.select_task(before)


def _check_output(learner: Method, position: int, task: Task) -> None:
    where = f"task {position} ('{task.name}')"
    x, y = next(iter(FixedLoader(task.train, 2)))
    try:
        output = learner.model(x.to(learner.device))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CuberError(f"{where}: the model cannot take inputs of shape {tuple(x.shape[1:])}: {reason}") from error
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(y):
        what = f"of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise CuberError(f"{where}: for {len(y)} samples the model must answer {len(y)} x classes numbers, not {what}")
    if output.shape[1] < task.classes:
        raise CuberError(f"{where} has {task.classes} classes, but the model has only {output.shape[1]} outputs for it")
