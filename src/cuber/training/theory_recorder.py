"""While a stream is learnt: how far the conditions of the paper's theorems are met, layer by layer.

Nothing is changed by looking: same weights, same random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.layerwise import LayerwiseMethod
from cuber.core.learner import Method
from cuber.errors import CuberError
from cuber.layers import evaluation_mode
from cuber.methods.cuber import CUBER
from cuber.theory import positive_correlation, power_iteration, sufficient_projection
from cuber.theory.thresholds import largest_backward_step, smallest_eps2

CURVATURE_SAMPLES = 64
ROUGHLY, FEWEST_PRODUCTS = 0.01, 8
"""A product with a layer's Hessian takes several passes through the network: what an order of magnitude needs."""

Records = list[dict[str, dict[str, Any]]]
"""Task -> layer -> ``first`` and ``last`` (norm of the gradient, smoothness), ``old`` (old task -> conditions)."""


class Observer(Protocol):
    """Who looks on while tasks are learnt, and writes down what belongs into the result."""

    records: Records

    def began(self, sample: list[Batch]) -> None:
        """A task has begun, the learner has looked at a sample of it, and no step has been made."""

    def ending(self, loader: Iterable[Batch]) -> None:
        """A task has been learnt, and ``end_task`` comes next."""


class Conditions:
    """For each task, layer and old task: ratio, cosine, what the theorems would have asked for, and what came of it.

    Constants are estimated, in the layer alone and at one point: the smoothness where a task begins (the new task's)
    and where it ended (the old one's), the first gradient in the place of the Lipschitz constant.
    """

    def __init__(self, learner: Method) -> None:
        if not isinstance(learner, CUBER):
            name = type(learner).__name__.lower()
            raise CuberError(
                f"the theorems compare with the gradients that old tasks ended with, which {name} does not keep: "
                "choose cuber (with eps2 above 1 it learns as trgp does)"
            )
        self.learner = learner
        self.records: Records = []

    def began(self, sample: list[Batch]) -> None:
        learner = self.learner
        with learner.as_task(None):  # as the learner itself looked: before any scaling
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
        gradients = self.learner.mean_gradients(loader)
        smoothness = curvatures(self.learner, self.learner.take(loader))
        for name, gradient in gradients.items():
            layer = self._layer(name)
            layer["last"] = {"gradient": float(gradient.norm()), "smoothness": smoothness[name]}
            for old, conditions in layer["old"].items():
                # What the old task gained at first order by the way that the layer went, -<g_old, w - w'>.
                start, end = conditions.get("start"), self._along(name, old)
                conditions["agreement"] = None if start is None or end is None else start - end

    def _conditions(self, name: str, old: int, gradient: Tensor) -> dict[str, float | None]:
        """Of an old task in a layer. None where it is not known: the old task did not come by there, say."""
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
        """``<g_old, w>``, where the old task's last gradient is known: added up in full, as differences are taken."""
        kept = self.learner.memory[name].gradients[old]
        if kept is None:
            return None
        entries = kept.entries(self.learner.layers[name].matrix().detach())
        return float((entries.cpu().double() * kept.values.cpu().double()).sum())

    def _layer(self, name: str) -> dict[str, Any]:
        """Where to write of a layer in the present task; of tasks that nobody looked on at there is nothing."""
        self.records.extend({} for _ in range(len(self.records), self.learner.tasks + 1))
        return self.records[self.learner.tasks].setdefault(name, {"old": {}})


def curvatures(learner: LayerwiseMethod, sample: list[Batch]) -> dict[str, float]:
    """The largest curvature of the mean loss within each layer that it reaches, roughly, by a few samples."""
    sample = batches.take(sample, CURVATURE_SAMPLES)
    layers = [layer for layer in learner.layers.values() if layer.requires_grad]
    found: dict[str, float] = {}
    with evaluation_mode(learner.model), torch.enable_grad():
        count = sum(map(batches.size, sample))
        loss = torch.stack([learner.loss(batch) * batches.size(batch) for batch in sample]).sum() / count
        for layer in layers:
            parameters = list(layer.parameters)
            slopes = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
            reached = [(p, slope) for p, slope in zip(parameters, slopes, strict=True) if slope is not None]
            if reached:
                found[layer.name] = _curvature(*zip(*reached, strict=True))
    return found


def _curvature(parameters: tuple[Tensor, ...], slopes: tuple[Tensor, ...]) -> float:
    sizes = [parameter.numel() for parameter in parameters]

    def product(vector: Tensor) -> Tensor:
        parts = [part.view_as(p) for part, p in zip(vector.split(sizes), parameters, strict=True)]
        products = torch.autograd.grad(slopes, parameters, parts, retain_graph=True, allow_unused=True)
        return torch.cat(
            [torch.zeros(n).to(vector) if h is None else h.flatten() for n, h in zip(sizes, products, strict=True)]
        )

    if not any(slope.requires_grad for slope in slopes):  # the loss is linear in these weights
        return 0.0
    return power_iteration(product, torch.zeros(sum(sizes)).to(parameters[0]), ROUGHLY, FEWEST_PRODUCTS)
