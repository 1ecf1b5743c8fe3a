"""Export: one task of a learner as a plain module."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cuber.core.misuse import check_known
from cuber.errors import CuberError
from cuber.layers.computed import old_hooks
from cuber.layers.plain import make_plain
from cuber.networks.heads import MultiHead, heads_of

if TYPE_CHECKING:
    from cuber.core.learner import Method


def export(learner: Method, task: int) -> nn.Module:
    """Return a copy of a learner's model, of the user's own class, that answers for one task without the learner.

    Scalings and gates are in its weights. It has the task's head, normalization statistics and per-task parameters. It
    is in evaluation mode, and what the learner has frozen is not frozen. Neither learner nor model are changed.

    Args:
        learner: any method.
        task: a task that was learned, or the one being learned.
    """
    check_known(learner, task, "export")
    if torch.is_inference_mode_enabled():
        raise CuberError(f"export({task}) makes new parameters: call it outside torch.inference_mode()")
    if learner.views and task >= learner.tasks:
        raise CuberError(f"export({task}) inside as_task, while the task is being learned: leave the block first")
    copies: dict[int, Any] = {}
    with learner.as_task(task):
        try:
            plain = _copy_with_one_head(learner.model, copies)
        except Exception as error:
            old = any(old_hooks(module) for module in learner.model.modules())
            remedy = "; use torch.nn.utils.parametrizations, whose weight_norm and spectral_norm can" if old else ""
            raise CuberError(f"export({task}) copies the model, which cannot be copied: {error}{remedy}") from error
    for parameter in learner.freezer.frozen:
        if id(parameter) in copies:  # heads of other tasks are not copied
            copies[id(parameter)].requires_grad_(True)
    plain.eval()
    make_plain(plain)
    learner.exported.add(task)
    return plain


def _copy_with_one_head(model: nn.Module, copies: dict[int, Any]) -> nn.Module:
    """Return a deep copy in which each MultiHead is its backbone and the selected head, wherever it is referred to.

    Args:
        model: the model.
        copies: the memo of ``copy.deepcopy``: what has the id of an object in it is put in the place of that object.
    """
    wrapped = []
    for multi in heads_of(model):
        if type(multi).forward is not MultiHead.forward or "forward" in vars(multi):
            continue  # the user's own way to compute stays
        if type(multi.backbone) is nn.Identity and not (_hooks(multi) or _hooks(multi.backbone)):
            # In the place of a layer, a head by itself gives the state keys of the model with that layer.
            copies[id(multi)] = copy.deepcopy(multi.heads[multi.task], copies)
        else:
            copies[id(multi)] = nn.Sequential()
            wrapped.append(multi)
    for multi in wrapped:
        plain = copies[id(multi)]
        plain.add_module("backbone", copy.deepcopy(multi.backbone, copies))
        plain.add_module("head", copy.deepcopy(multi.heads[multi.task], copies))
        plain.__dict__.update(copy.deepcopy(_hooks(multi), copies))
    return copy.deepcopy(model, copies)


def _hooks(module: nn.Module) -> dict[str, Any]:
    return {name: hooks for name, hooks in vars(module).items() if "hook" in name and hooks}
