"""Methods that remember how the inputs of each task are distributed, so that tasks can be inferred."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cuber.core import batches, distributed
from cuber.core.batches import Batch
from cuber.core.first_layer import first_input
from cuber.core.inference import Call
from cuber.core.masks import MaskedInputs
from cuber.core.settings import setting
from cuber.core.views import showing
from cuber.errors import CuberError
from cuber.layers import evaluation_mode
from cuber.subspace import TaskDensities

SAMPLES = 1000
"""Training samples that a density is computed from."""


@dataclass(eq=False, repr=False)
class InputDensities(MaskedInputs):
    """A method that remembers how the inputs of each task are distributed, at the first protected layer.

    Inputs of the first layer do not change while later tasks are learned. What precedes it, such as normalization with
    statistics of each task, is computed as task 0 does, so that the densities of all tasks are over the same space.
    """

    remembered: ClassVar[dict[str, Any]] = {"densities": TaskDensities}
    kinds: ClassVar[dict[str, str]] = dict.fromkeys(("layer", "densities", "scores", "losses"), "densities")

    task_inference: bool = setting(
        True, "remember the distribution of each task's inputs, so that tasks can be inferred", equivalent=True
    )

    def __post_init__(self) -> None:
        self.densities: TaskDensities = TaskDensities()
        """How the inputs of each task are distributed."""
        super().__post_init__()

    def observe_task(self, loader: Iterable[Batch]) -> None:
        """Remember how the inputs of the present task are distributed."""
        super().observe_task(loader)
        if self.task_inference:
            self.densities.add_task(self.tasks, self._describe_task(loader))

    @torch.no_grad()
    def _describe_task(self, loader: Iterable[Batch]) -> Tensor | None:
        """Return the descriptions of the first samples of all processes, n x D, in the same order in all of them."""
        found: list[Tensor] = []
        with showing(self, 0), evaluation_mode(self.model):
            for batch, *_ in batches.rounds(loader, SAMPLES):
                own = None if batch is None else self._describe(lambda: self.loss(batch), [batch])  # noqa: B023
                found += [part for part in distributed.gather(batches.sendable(own)) if part is not None]
        same = [part.to(self.device) for part in found if part.shape[1] == found[0].shape[1]]
        described = torch.cat(same)[:SAMPLES] if same else None
        return described if described is not None and bool(described.isfinite().all()) else None

    def _describe(self, call: Callable[[], Any], forms: list[Batch]) -> Tensor | None:
        """Return the description of each sample at the first layer that a call reaches, at whose input the call ends.

        The first call decides which layer it is.

        Args:
            call: a part of whose forward pass is made.
            forms: the batch that it is about, in each form that the learner's mask may take.
        """
        layer = self.densities.layer
        layers = [self.layers[layer]] if layer in self.layers else self.layers.values() if not layer else []
        found = first_input(layers, call, batches.size(forms[0]), self._real_positions(forms))
        if found is None:
            return None
        self.densities.layer = found.layer
        return found.vectors

    def _real_positions(self, forms: list[Batch]) -> Tensor | None:
        """Return what the mask says of the first form of a batch that it can take and says anything of."""
        errors = []
        for batch in forms:
            try:
                if (real := self.real_positions(batch)) is not None:
                    return real
            except CuberError as error:
                errors.append(error)
        if len(errors) < len(forms):
            return None
        raise next((error for error in errors if error.__cause__ is None), errors[0])  # a wrong answer before none

    def describe_inputs(self, x: Any) -> Tensor:
        """Return the vector of each sample whose densities are compared, n x D, from a part of a forward pass.

        Args:
            x: what the model takes: a tensor, a tuple of arguments, or a mapping of named ones.
        """
        call = Call.of(batches.to(x, self.device))
        explained = batches.explained("infer_task: the model cannot take these samples")
        with torch.no_grad(), showing(self, 0), evaluation_mode(self.model), explained:
            described = self._describe(lambda: call.run(self.model), call.as_batches(self.model))
        if described is None:
            raise CuberError(
                f"infer_task: layer '{self.densities.layer}', the first protected one, does not see a vector, sequence "
                "or image of real numbers for each sample: give at least one sample, as in training"
            )
        if not self.densities.fits(described.shape[1]):
            raise CuberError(
                f"infer_task: the samples have another shape than those of the learned tasks at layer "
                f"'{self.densities.layer}', the first protected one: give a batch as in training, samples first"
            )
        if not bool(described.isfinite().all()):
            raise CuberError(
                f"infer_task: layer '{self.densities.layer}' sees inputs that are not finite: check the samples"
            )
        return described
