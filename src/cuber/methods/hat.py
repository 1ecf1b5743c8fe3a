"""Hard Attention to the Task (Serra et al., 2018): every task learns which units it needs, and later ones spare them.

A gate ``a = sigmoid(s e)`` multiplies each unit of each layer; e is the task's embedding, learnt with it. During each
epoch s grows until the gates are open or closed, hardly ever between. A weight between two units that old tasks have
open does not move any more.

The paper has its gates behind the activation. Here they are before it, which is the same for ReLU, and for others as
far as it matters: a closed unit is one that sees 0. The output layer of a model without heads has no gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.settings import setting
from cuber.core.update_filter import ModulatedSteps
from cuber.errors import CuberError
from cuber.layers import Gate, ProtectedLayer, Wiring, evaluation_mode, find_places, strip_gates
from cuber.networks.heads import heads_of

LARGEST_EMBEDDING = 6.0
"""Embeddings stay within, so that no gate is ever out of reach for gradients."""
LARGEST_EXPONENT = 50.0
"""Of the hyperbolic cosine in the compensation, for numbers that a float can hold."""


@dataclass(eq=False, repr=False)
class HAT(ModulatedSteps):
    """Learn a gate for every unit, and leave what lies between old tasks' open units alone."""

    smax: float = setting(400.0, "how hard the gates are after training, and at the end of each epoch of it", low=1)
    c: float = setting(0.75, "weight of the regularizer that keeps a task from opening more than it needs", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.embeddings: list[dict[str, Tensor]] = []
        """Task -> layer -> e."""
        self.units: dict[str, Tensor] = {}
        """Layer -> attention that old tasks pay to what it puts out, the largest of any."""
        self.inputs: dict[str, Tensor] = {}
        """Layer -> attention that old tasks pay to what each column of [W | b] is multiplied with."""
        self._learning: dict[str, nn.Parameter] = {}
        self._gates: dict[str, Gate] = {}
        self._places: dict[str, list[str]] = {}
        """Layer -> the modules that its gate sits on."""
        self._step = 0
        """Of the present epoch."""
        self._annealed = torch.zeros((), dtype=torch.float64)
        """s at the present step, where all gates see it."""

    # The algorithm

    def on_task_begin(self) -> None:
        if self.steps_per_epoch is None:
            raise CuberError("HAT must know how long an epoch is, and this loader has no length: begin_task(steps=...)")
        self._anneal(step=0)
        self._learning = {
            name: nn.Parameter(torch.randn(gate.layer.outputs).to(_precise(gate.layer.parameter)))
            for name, gate in self._gates_on_the_way().items()
        }
        self._show_embeddings(self._learning, self._annealed)

    def _anneal(self, step: int) -> None:
        """``s = 1/smax + (smax - 1/smax) (b - 1) / (B - 1)`` at step b of an epoch of B."""
        steps = self.steps_per_epoch or 1
        share = min(step / (steps - 1), 1.0) if steps > 1 else 1.0
        self._step = step
        self._annealed.fill_(1 / self.smax + (self.smax - 1 / self.smax) * share)

    def modulate(self, layer: ProtectedLayer, change: Tensor) -> Tensor:
        """What is left of it by ``1 - min(attention to the output, attention to the input)``."""
        if layer.name not in self.units:
            return change
        units, inputs = self.units[layer.name].to(change), self.inputs[layer.name].to(change)
        return change * (1 - torch.minimum(units.unsqueeze(1), inputs))

    @torch.no_grad()
    def before_step(self, optimizer: Optimizer) -> None:
        super().before_step(optimizer)
        s = float(self._annealed)
        for embedding, share in self._regularized(optimizer):
            attention = torch.sigmoid(s * embedding)
            assert embedding.grad is not None
            embedding.grad += share * s * attention * (1 - attention)
            embedding.grad *= _compensation(embedding, s, self.smax)

    @torch.no_grad()
    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        s = float(self._annealed)
        values = [(share * torch.sigmoid(s * embedding)).sum() for embedding, share in self._regularized(optimizer)]
        return torch.stack(values).sum() if values else None

    def _regularized(self, optimizer: Optimizer) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """The embeddings that an optimizer trains, and what each unit's attention costs."""
        free = {name: self._free(name) for name in self._learning}
        total = sum(float(units.sum()) for units in free.values())
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, embedding in self._learning.items():
            if id(embedding) in held and embedding.grad is not None:
                yield embedding, self.c * free[name] / max(total, 1e-30)

    def _free(self, name: str) -> Tensor:
        """How far old tasks leave the units of a layer to others."""
        embedding = self._learning[name]
        return 1 - self.units[name].to(embedding) if name in self.units else torch.ones_like(embedding)

    @torch.no_grad()
    def after_step(self, optimizer: Optimizer) -> None:
        super().after_step(optimizer)
        for embedding in self._learning.values():
            embedding.clamp_(-LARGEST_EMBEDDING, LARGEST_EMBEDDING)
        # Where several optimizers share the work, it is the steps of the first that count.
        if optimizer is next(iter(self._wrapped), optimizer):
            self._anneal(self._step + 1)

    def end_epoch(self) -> None:
        super().end_epoch()
        self._anneal(step=0)

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        run = self._passing()
        if not bool((loss := run()).isfinite()):
            raise CuberError(f"task {self.task}: the loss is {float(loss)} at the end; lower the learning rate")
        learnt = {name: embedding.detach().clone() for name, embedding in self._learning.items()}
        attention = {name: torch.sigmoid(self.smax * embedding) for name, embedding in learnt.items()}
        wiring = Wiring(self.layers.values(), {name: self._gates[name] for name in learnt}, run)
        for name, inputs in wiring.attention(attention).items():
            layer = self.layers[name]
            units = attention.get(name, torch.ones(layer.outputs)).to(_precise(layer.parameter))
            inputs = inputs.to(units)
            self.units[name] = torch.maximum(units, self.units.get(name, units))
            self.inputs[name] = torch.maximum(inputs, self.inputs.get(name, inputs))
        self.embeddings.append(learnt)

    # Where the gates are

    def _gates_on_the_way(self) -> dict[str, Gate]:
        """The gates that the present task passes; layers that no task has passed before get theirs now."""
        places = find_places(self.model, self.layers.values(), self._passing())
        if not heads_of(self.model):
            places.popitem()  # the output layer
        names = {module: name for name, module in self.model.named_modules()}
        for layer, modules in places.items():
            if layer not in self._places:
                self._place(layer, [names[module] for module in modules])
        return {layer: self._gates[layer] for layer in places}

    def _place(self, layer: str, modules: list[str]) -> None:
        self._places[layer] = modules
        self._gates[layer] = Gate(self.layers[layer], self.smax)
        self._gates[layer].sit_on(map(self.model.get_submodule, modules))

    def _passing(self) -> Callable[..., Tensor]:
        """Runs two samples through the model to their loss; the whole first batch, where it cannot be cut."""
        few = batches.first(self.sample[0], 2)
        try:
            self._pass(few)
        except Exception:
            few = self.sample[0]
        return partial(self._pass, few)

    @torch.no_grad()
    def _pass(self, batch: Batch, mark: float | None = None) -> Tensor:
        """The loss of a batch, with all numbers in it replaced by ``mark`` if it is given."""
        if mark is not None:
            batch = batches.map_tensors(batch, lambda x: torch.full_like(x, mark) if x.is_floating_point() else x)
        with evaluation_mode(self.model):
            return self.loss(batch)

    # How the model is seen, and what trains

    def show_task(self, task: int | None) -> None:
        super().show_task(task)
        if task is not None and task == self.task:
            self._show_embeddings(self._learning, self._annealed)
        else:
            self._show_embeddings(self.embeddings[task] if task is not None and task < len(self.embeddings) else {})

    def _show_embeddings(self, embeddings: Mapping[str, Tensor], annealed: Tensor | None = None) -> None:
        for name, gate in self._gates.items():
            gate.embedding, gate.annealed = embeddings.get(name), annealed

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from super().named_parameters()
        if self.task is not None:
            for name, embedding in self._learning.items():
                yield f"{name}.attention", embedding

    def check_optimizer(self, optimizer: Optimizer) -> None:
        super().check_optimizer(optimizer)
        self._require_held(optimizer, ".attention", "task embeddings")

    def detach(self) -> None:
        super().detach()
        strip_gates(self.model)

    # What is remembered

    def _state(self) -> dict[str, Any]:
        learning = self._learning if self.task is not None else {}
        return super()._state() | {
            "embeddings": self.embeddings,
            "units": self.units,
            "inputs": self.inputs,
            "learning": {name: embedding.detach() for name, embedding in learning.items()},
            "places": self._places,
            "step": self._step,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.embeddings = [
            {name: embedding.to(self.device) for name, embedding in embeddings.items()}
            for embeddings in state["embeddings"]
        ]
        self.units = {name: units.to(self.device) for name, units in state["units"].items()}
        self.inputs = {name: inputs.to(self.device) for name, inputs in state["inputs"].items()}
        self._learning = {
            name: nn.Parameter(embedding.to(self.device).clone()) for name, embedding in state["learning"].items()
        }
        strip_gates(self.model)
        self._gates, self._places = {}, {}
        for layer, modules in state["places"].items():
            self._place(layer, list(modules))
        self._anneal(state["step"])

    def memory_bytes(self) -> dict[str, int]:
        embeddings = (embedding for by_layer in self.embeddings for embedding in by_layer.values())
        kept = [*embeddings, *self.units.values(), *self.inputs.values()]
        return {"attention": sum(tensor.nbytes for tensor in kept), **super().memory_bytes()}

    def describe(self) -> list[str]:
        lines = [f"{name}: {int((u > 0.5).sum())} of {len(u)} units taken" for name, u in self.units.items()]
        return lines + super().describe()


def _precise(parameter: Tensor) -> Tensor:
    """A tensor on the device of a parameter and of its type, but for types too coarse for gates."""
    return parameter.new_empty(0, dtype=torch.promote_types(parameter.dtype, torch.float32))


def _compensation(embedding: Tensor, s: float, smax: float) -> Tensor:
    """What embedding gradients are short of: as if s were 1, and the gate not as hard as it is."""
    exponent = (s * embedding).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
    return smax * (exponent.cosh() + 1) / (s * (embedding.cosh() + 1))
