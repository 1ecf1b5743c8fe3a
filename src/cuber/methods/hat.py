"""Hard Attention to the Task (Serra et al., 2018): each task learns which units it uses; later tasks preserve them.

A gate ``a = sigmoid(s e)`` multiplies each unit of each layer; e is the task's embedding, learned with it. In each
epoch s grows until the gates are open or closed. A weight between two units that old tasks have open does not change.

The paper has its gates after the activation. Here they are before it: the same for ReLU, and for other activations a
closed unit is one whose input is 0. The output layer of a model without heads has no gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.core import batches, distributed
from cuber.core.batches import Batch
from cuber.core.optimizer_hooks import parameters_of
from cuber.core.settings import setting
from cuber.core.update_filter import FilteredUpdates
from cuber.errors import CuberError
from cuber.layers import Gate, ProtectedLayer, Wiring, evaluation_mode, find_gated_modules, strip_gates
from cuber.networks.heads import heads_of

LARGEST_EMBEDDING = 6.0
"""Embeddings are clamped to it, so that the gradient of no gate vanishes."""
LARGEST_EXPONENT = 50.0
"""Bound on the argument of cosh in the compensation, against overflow."""


@dataclass(eq=False, repr=False)
class HAT(FilteredUpdates):
    """Learn a gate for every unit, and leave weights between open units of old tasks unchanged.

    Args:
        model: any ``nn.Module``, with a ``MultiHead`` where tasks have a head each.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.

    >>> learner = HAT(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), smax=100)
    """

    remembered: ClassVar[dict[str, Any]] = {
        "embeddings": list[dict[str, Tensor]],
        "units": dict[str, Tensor],
        "inputs": dict[str, Tensor],
        "gated_modules": dict[str, list[str]],
    }
    in_task: ClassVar[dict[str, Any]] = {"learning": dict[str, nn.Parameter], "step": int}
    kinds: ClassVar[dict[str, str]] = dict.fromkeys(["embeddings", "units", "inputs"], "attention")

    smax: float = setting(400.0, "the largest s: at the end of each epoch, and after training", low=1)
    c: float = setting(0.75, "weight of the regularizer, which keeps a task from opening many gates", low=0)

    def __post_init__(self) -> None:
        self.embeddings: list[dict[str, Tensor]] = []
        """Task -> layer name -> e."""
        self.units: dict[str, Tensor] = {}
        """Layer name -> the largest attention of any old task to each output unit."""
        self.inputs: dict[str, Tensor] = {}
        """Layer name -> the same for the input of each column of [W | b]."""
        self.learning: dict[str, nn.Parameter] = {}
        """Layer name -> e of the present task."""
        self.gates: dict[str, Gate] = {}
        self.gated_modules: dict[str, list[str]] = {}
        """Layer name -> names of the modules whose output its gate multiplies."""
        self.step = 0
        """In the present epoch."""
        self.annealed = torch.zeros((), dtype=torch.float64)
        """s at the present step; all gates share this tensor."""
        super().__post_init__()

    # The algorithm

    def on_task_begin(self) -> None:
        """Draw an embedding for each layer that the task reaches."""
        if self.steps_per_epoch is None:
            raise CuberError(
                "HAT needs the number of steps in an epoch, which this loader lacks: begin_task(steps=...)"
            )
        self.anneal(step=0)
        self.learning = {
            name: nn.Parameter(self._for_gate(torch.randn(self.layers[name].outputs), name))
            for name in self._place_gates()
        }
        distributed.broadcast_(self.learning.values())
        self._open_gates(self.learning, self.annealed)

    def anneal(self, step: int) -> None:
        """Set ``s = 1/smax + (smax - 1/smax) (b - 1) / (B - 1)`` at step b of an epoch of B."""
        steps = self.steps_per_epoch or 1
        share = min(step / (steps - 1), 1.0) if steps > 1 else 1.0
        self.step = step
        self.annealed.fill_(1 / self.smax + (self.smax - 1 / self.smax) * share)

    def filter_update(self, layer: ProtectedLayer, change: Tensor) -> Tensor:
        """Multiply by ``1 - min(attention to the output, attention to the input)``."""
        if layer.name not in self.units:
            return change
        units, inputs = self.units[layer.name].to(change), self.inputs[layer.name].to(change)
        return change * (1 - torch.minimum(units.unsqueeze(1), inputs))

    @torch.no_grad()
    def before_step(self, optimizer: Optimizer) -> None:
        """Add the regularizer's gradient to that of embeddings, and compensate as if s were 1 and gates less hard."""
        super().before_step(optimizer)
        s = float(self.annealed)
        for e, cost in self.regularized(optimizer):
            attention = torch.sigmoid(s * e)
            exponent = (s * e).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
            assert e.grad is not None
            e.grad += cost * s * attention * (1 - attention)
            e.grad *= self.smax * (exponent.cosh() + 1) / (s * (e.cosh() + 1))

    @torch.no_grad()
    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        s = float(self.annealed)
        values = [(cost * torch.sigmoid(s * e)).sum() for e, cost in self.regularized(optimizer)]
        return torch.stack(values).sum() if values else None

    def regularized(self, optimizer: Optimizer) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Iterate over the embeddings of an optimizer, with the cost of attention to each unit: c / sum, if free."""
        zero = torch.zeros(())
        free = {name: torch.ones_like(e) - self.units.get(name, zero).to(e) for name, e in self.learning.items()}
        total = sum(float(units.sum()) for units in free.values())
        held = set(parameters_of(optimizer))
        for name, e in self.learning.items():
            if e in held and e.grad is not None:
                yield e, self.c * free[name] / max(total, 1e-30)

    @torch.no_grad()
    def after_step(self, optimizer: Optimizer) -> None:
        super().after_step(optimizer)
        for embedding in self.learning.values():
            embedding.clamp_(-LARGEST_EMBEDDING, LARGEST_EMBEDDING)
        if self.optimizers.is_first(optimizer):  # of several optimizers, one counts the steps
            self.anneal(self.step + 1)

    def on_epoch_end(self) -> None:
        self.anneal(step=0)

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        """Find the attention to the inputs of each layer, and remember the largest of all tasks."""
        run = self._small_pass()
        if not bool((loss := run()).isfinite()):
            raise CuberError(f"task {self.task}: the loss is {float(loss)} at the end; lower the learning rate")
        learned = {name: embedding.detach().clone() for name, embedding in self.learning.items()}
        attention = {name: torch.sigmoid(self.smax * embedding) for name, embedding in learned.items()}
        wiring = Wiring(self.layers.values(), {name: self.gates[name] for name in learned}, run)
        for name, inputs in wiring.attention(attention).items():
            units = attention.get(name, torch.ones(self.layers[name].outputs))
            for largest, values in ((self.units, units), (self.inputs, inputs)):
                values = self._for_gate(values, name)
                largest[name] = torch.maximum(values, largest.get(name, values))
        self.embeddings.append(learned)

    def _for_gate(self, values: Tensor, layer: str) -> Tensor:
        """Return values on the device and in the dtype of a layer's weight, in float32 at least."""
        weight = self.layers[layer].parameter
        return values.to(weight.device, torch.promote_types(weight.dtype, torch.float32))

    # Where the gates are

    def _place_gates(self) -> list[str]:
        """Return the layers with gates that the present task reaches; make the gates of those reached first."""
        places = find_gated_modules(self.model, self.layers.values(), self._small_pass())
        if places and not heads_of(self.model):
            places.popitem()  # the output layer
        names = {module: name for name, module in self.model.named_modules()}
        self.gated_modules = {layer: [names[m] for m in places[layer]] for layer in places} | self.gated_modules
        self._make_gates()
        return list(places)

    def _make_gates(self) -> None:
        for layer, modules in self.gated_modules.items():
            if layer not in self.gates and layer in self.layers:  # a later task may have bypassed it
                self.gates[layer] = Gate(self.layers[layer], self.smax)
                for name in modules:
                    self.model.get_submodule(name).register_forward_hook(self.gates[layer])

    def _small_pass(self) -> Callable[..., Tensor]:
        """Return a function that runs two samples through model and loss, or a whole batch where it cannot be cut.

        They are those of the first process, so that all find the same.
        """
        few = distributed.broadcast(batches.sendable(batches.first(self.sample[0], 2)))

        @torch.no_grad()
        def run(mark: float | None = None) -> Tensor:
            """Return the loss, with all floating-point numbers of the samples replaced by ``mark`` if it is given."""
            marked = few
            if mark is not None:
                marked = batches.map_tensors(few, lambda x: torch.full_like(x, mark) if x.is_floating_point() else x)
            with evaluation_mode(self.model):
                return self.loss(marked)

        try:
            run()
        except Exception:
            few = distributed.broadcast(batches.sendable(self.sample[0]))
        return run

    # How the model is shown, and what trains

    def show_task(self, task: int | None) -> None:
        super().show_task(task)
        if task is not None and task == self.task:
            self._open_gates(self.learning, self.annealed)
        else:
            self._open_gates(self.embeddings[task] if task is not None and task < len(self.embeddings) else {})

    def _open_gates(self, embeddings: dict[str, Any], annealed: Tensor | None = None) -> None:
        for name, gate in self.gates.items():
            gate.embedding, gate.annealed = embeddings.get(name), annealed

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from super().named_parameters()
        yield from self._named_embeddings()

    def _named_embeddings(self) -> list[tuple[str, nn.Parameter]]:
        return [(f"{name}.attention", embedding) for name, embedding in self.learning.items()]

    def check_optimizer(self, optimizer: Optimizer) -> None:
        super().check_optimizer(optimizer)
        self.optimizers.require_parameters(optimizer, self._named_embeddings())

    def on_task_left(self) -> None:
        super().on_task_left()
        self.learning = {}

    def on_state_loaded(self) -> None:
        super().on_state_loaded()
        strip_gates(self.model)
        self.gates = {}
        self._make_gates()
        self.anneal(self.step)

    def on_detach(self) -> None:
        super().on_detach()
        strip_gates(self.model)

    def describe(self) -> list[str]:
        lines = [f"{name}: {int((u > 0.5).sum())} of {len(u)} units taken" for name, u in self.units.items()]
        return lines + super().describe()
