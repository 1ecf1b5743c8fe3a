"""Measure during training how far the conditions of the paper's theorems are met, layer by layer.

Measuring changes neither weights nor random numbers. Only this module of cuber.training imports cuber.theory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.layerwise import LayerwiseMethod
from cuber.core.learner import Method
from cuber.errors import CuberError
from cuber.layers import evaluation_mode
from cuber.methods import CUBER, method_name
from cuber.theory import positive_correlation, power_iteration, sufficient_projection
from cuber.theory.thresholds import largest_backward_step, smallest_eps2

CURVATURE_SAMPLES = 64
TOLERANCE, FEWEST_PRODUCTS = 0.01, 8
"""Of the power iteration: Hessian products are expensive, and the order of magnitude is enough."""


class TheoryRecorder:
    """Observer that records, per task, layer and old task, what the theorems ask for and what happened.

    ``records[task][layer]`` has the norm of the gradient and the smoothness at the ``first`` and ``last`` step, and
    under ``old`` the conditions of each old task. Constants are estimated in one layer and at one point: smoothness
    where the new task begins and where the old one ended, the first gradient instead of the Lipschitz constant.
    """

    def __init__(self, learner: Method) -> None:
        if not isinstance(learner, CUBER):
            name = method_name(type(learner))
            raise CuberError(
                f"the theorems compare with the last gradients of old tasks, which {name} does not keep: "
                "choose cuber (with eps2 above 1 it learns as trgp does)"
            )
        self.learner = learner
        self.records: list[dict[str, dict[str, Any]]] = []
        """Task -> layer -> measurements; ``cuber.learn`` puts the result's ``theory`` here."""

    def began(self, sample: list[Batch]) -> None:
        """Called after ``begin_task`` and before the first step, with the samples that the learner looked at."""
        learner = self.learner
        with learner.as_task(None):  # without scalings, as in begin_task
            gradients = learner.mean_gradients(sample)
            smoothness = curvatures(learner, sample)
        for name, gradient in gradients.items():
            layer = self._layer(name)
            layer["first"] = {"gradient": float(gradient.norm()), "smoothness": smoothness[name]}
            layer["old"] = {
                old: self._conditions(name, old, gradient) | {"start": self._along(name, old)}
                for old in range(learner.tasks)
            }

    def ending(self, loader: Iterable[Batch]) -> None:
        """Called after the last step and before ``end_task``."""
        gradients = self.learner.mean_gradients(loader)
        smoothness = curvatures(self.learner, self.learner.take(loader))
        for name, gradient in gradients.items():
            layer = self._layer(name)
            layer["last"] = {"gradient": float(gradient.norm()), "smoothness": smoothness[name]}
            for old, conditions in layer["old"].items():
                # The first-order gain of the old task, -<g_old, w - w'>.
                start, end = conditions.get("start"), self._along(name, old)
                conditions["agreement"] = None if start is None or end is None else start - end

    def _conditions(self, name: str, old: int, gradient: Tensor) -> dict[str, float | None]:
        """Return the conditions of an old task in a layer; None for values that are not known."""
        kept, new = self.learner.memory[name].gradients[old], float(gradient.norm())
        ratio = sufficient_projection(gradient, self.learner.memory[name].basis_of(old))
        if kept is None or kept.norm == 0:
            return {"ratio": ratio, "cosine": None, "eps2": None, "step_size": None, "agreement": None}
        cosine = positive_correlation(kept, gradient)
        ended = self.records[old].get(name, {}).get("last", {}).get("smoothness")
        H = None if ended is None else 2 * max(ended, self._layer(name)["first"]["smoothness"])
        return {
            "ratio": ratio,
            "cosine": cosine,
            "eps2": smallest_eps2(0.0, kept.norm, new),
            "step_size": None if H is None else largest_backward_step(cosine, H, new, 1, kept.norm),
            "agreement": None,
        }

    def _along(self, name: str, old: int) -> float | None:
        """Return ``<g_old, w>`` in double precision, because differences of it are taken; None without a gradient."""
        kept = self.learner.memory[name].gradients[old]
        if kept is None:
            return None
        entries = kept.entries(self.learner.layers[name].matrix().detach())
        return float((entries.cpu().double() * kept.values.cpu().double()).sum())

    def _layer(self, name: str) -> dict[str, Any]:
        """Return the record of a layer in the current task; tasks that were not observed have empty records."""
        self.records.extend({} for _ in range(len(self.records), self.learner.tasks + 1))
        return self.records[self.learner.tasks].setdefault(name, {"old": {}})


def curvatures(learner: LayerwiseMethod, sample: list[Batch]) -> dict[str, float]:
    """Estimate the largest eigenvalue of the Hessian of the mean loss in each layer, on a few samples."""
    sample = batches.take(sample, CURVATURE_SAMPLES)
    layers = [layer for layer in learner.layers.values() if layer.requires_grad]
    found: dict[str, float] = {}
    with evaluation_mode(learner.model), torch.enable_grad(), parametrize.cached():
        count = sum(map(batches.size, sample))
        loss = torch.stack([learner.loss(batch) * batches.size(batch) for batch in sample]).sum() / count
        for layer in layers:
            parameters = layer.tensors
            gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
            reached = [(p, gradient) for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None]
            if reached:
                found[layer.name] = _curvature(*zip(*reached, strict=True))
    return found


def _curvature(parameters: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> float:
    sizes = [parameter.numel() for parameter in parameters]

    def product(vector: Tensor) -> Tensor:
        parts = [part.view_as(p) for part, p in zip(vector.split(sizes), parameters, strict=True)]
        products = torch.autograd.grad(gradients, parameters, parts, retain_graph=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in products])

    if not any(gradient.requires_grad for gradient in gradients):  # the loss is linear in these weights
        return 0.0
    return power_iteration(product, torch.zeros(sum(sizes)).to(parameters[0]), TOLERANCE, FEWEST_PRODUCTS)
