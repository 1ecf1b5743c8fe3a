"""Removing a learner from its model, with a warning of what only the learner knows."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from cuber.errors import CuberWarning
from cuber.layers.adapters import active_adapters
from cuber.layers.attached import attached_layers
from cuber.layers.gates import gates_of
from cuber.layers.model import release
from cuber.networks.heads import HeadCopies

if TYPE_CHECKING:
    from cuber.core.learner import Method


def detach(learner: Method) -> None:
    """Remove a learner from its model; then warn of what tasks need and the model does not have."""
    lost = {} if learner.is_detached else _lost(learner)
    learner._leave_task()
    learner.freezer.thaw()
    learner.normalization.detach()
    learner.on_detach()
    learner.is_detached = True
    release(learner.model)
    if lost:
        each = (
            f"{kind} of task{'s' if tasks[1:] else ''} {', '.join(map(str, tasks))}" for kind, tasks in lost.items()
        )
        warnings.warn(
            f"detach leaves the model with its bare weights, and these are lost: {'; '.join(each)}. To keep a task, "
            "call learner.export(task) before detach()",
            CuberWarning,
            stacklevel=3,
        )


def _lost(learner: Method) -> dict[str, list[int]]:
    """Return what is not in the model's present parameters and buffers -> the tasks that need it and were not exported.

    It is read off the model as each task is shown, so that it holds for every method.
    """
    lost: dict[str, list[int]] = {"scalings": [], "gates": [], "adapters": [], "heads": [], "normalization": []}
    present, heads = learner.normalization.statistics(), _selected_copies(learner)
    with learner.as_task(None) as model:
        adapters = active_adapters(model)
    known = learner.tasks + (learner.at_once if learner.task is not None else 0)
    for task in sorted(set(range(known)) - learner.exported):
        with learner.as_task(task) as model:
            shown = learner.normalization.statistics()
            if any(layer.scaling is not None for layer in attached_layers(model)):
                lost["scalings"].append(task)
            if any(gate.embedding is not None for gate in gates_of(model)):
                lost["gates"].append(task)
            if active_adapters(model) != adapters:
                lost["adapters"].append(task)
            if _selected_copies(learner) != heads:
                lost["heads"].append(task)
            if any(not torch.equal(value, present[name]) for name, value in shown.items()):
                lost["normalization"].append(task)
    return {kind: tasks for kind, tasks in lost.items() if tasks}


def _selected_copies(learner: Method) -> list[int]:
    """Return which head of each HeadCopies is selected; the heads of other classes stay in the model."""
    return [multi.task for multi in learner.heads if isinstance(multi, HeadCopies)]
