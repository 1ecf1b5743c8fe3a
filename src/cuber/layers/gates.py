"""Gates on the outputs of layers: where they are placed, and which gated units each input of a layer depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from cuber.layers.protected import ProtectedLayer, observed

Run = Callable[..., Tensor]
"""Runs a few samples through model and loss; ``run(mark)`` replaces all their numbers by one."""

MARKS = (torch.nan, 1.0)
"""NaN propagates through arithmetic, but not through every comparison; 1 does."""


class Gate:
    """A forward hook, copied with the model, that multiplies the output units of a layer by ``sigmoid(s e)``."""

    def __init__(self, layer: ProtectedLayer, sharpness: float) -> None:
        self.layer = layer
        self.sharpness = sharpness
        """s, unless it is annealed."""
        self.embedding: Tensor | None = None
        """e, one number per unit; None: no gate."""
        self.annealed: Tensor | None = None
        """s while the layer is in training mode."""
        self.forced: Tensor | None = None
        """The output of each unit, whatever the layer computes."""

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        if self.forced is None and self.embedding is None:
            return output
        if output.is_nested:  # sequences of different lengths, as torch's transformers pack them
            return torch.nested.as_nested_tensor([self(module, arguments, part) for part in output.unbind()])
        values = self.attention() if self.forced is None else self.forced
        values = values.to(output).reshape(-1, *[1] * self.layer.dimensions_after_units)
        return output * values if self.forced is None else torch.zeros_like(output) + values

    def attention(self) -> Tensor:
        """Return how far each unit is open, from 0 to 1."""
        assert self.embedding is not None
        if self.embedding.device != self.layer.parameter.device:  # the model was moved
            self.embedding.data = self.embedding.data.to(self.layer.parameter.device)
        s = self.annealed if self.annealed is not None and self.layer.modules[0].training else self.sharpness
        return torch.sigmoid(self.embedding * s)


def gates_of(model: nn.Module) -> dict[Gate, list[nn.Module]]:
    """Return all gates of a model, each with the modules whose outputs it multiplies."""
    found: dict[Gate, list[nn.Module]] = {}
    for module in model.modules():
        for hook in module._forward_hooks.values():
            if isinstance(hook, Gate):
                found.setdefault(hook, []).append(module)
    return found


def strip_gates(model: nn.Module) -> None:
    """Remove all gates from a model, also from a copy of a gated one."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, Gate):
                hook.embedding = None  # compiled code still calls the hook
                del module._forward_hooks[key]


def find_gated_modules(model: nn.Module, layers: Iterable[ProtectedLayer], run: Run) -> dict[str, list[nn.Module]]:
    """Find where the gates of layers belong.

    A normalization of each unit by itself would undo a gate before it. Where one reads nothing but the output of a
    layer, and is all that reads it, the gate belongs after the normalization; otherwise after the layer.

    Returns:
        Name of each layer that ``run`` calls, the last one last -> the modules whose outputs its gate multiplies.
    """
    layers = [layer for layer in layers if layer.rule.whole]  # of parts of a module, the outputs are not known
    calls: dict[ProtectedLayer, int] = {}
    outputs: dict[int, tuple[ProtectedLayer, Tensor]] = {}
    readers: dict[nn.Module, list[ProtectedLayer | None]] = {}

    def after_layer(layer: ProtectedLayer, output: Tensor) -> None:
        calls[layer] = calls.pop(layer, 0) + 1
        if output.dim() - layer.dimensions_after_units == 2:  # else a normalization would mix its units
            outputs[id(output)] = layer, output  # kept, so that no other tensor has its id

    def before_norm(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        layer, _ = outputs.get(id(arguments[0]) if arguments else 0, (None, None))
        readers.setdefault(module, []).append(layer)

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(_outputs_to(partial(after_layer, layer), layer.modules))
        for module in model.modules():
            if isinstance(module, _NormBase):
                hooks.enter_context(module.register_forward_pre_hook(before_norm))
        run()
    places: dict[str, list[nn.Module]] = {}
    for layer, count in calls.items():
        norms = [module for module, read in readers.items() if set(read) == {layer}]
        reads_all = norms and sum(len(readers[module]) for module in norms) == count
        places[layer.name] = norms if reads_all and not _is_read_elsewhere(layer, norms, run) else layer.modules
    return places


def _is_read_elsewhere(layer: ProtectedLayer, norms: list[nn.Module], run: Run) -> bool:
    """Return whether the loss depends on the output of a layer by another way than through ``norms``."""
    spoil = partial(torch.full_like, fill_value=torch.nan)
    with _outputs_to(spoil, layer.modules), _outputs_to(torch.zeros_like, norms):
        return not bool(run().isfinite())


def _outputs_to(function: Callable[[Tensor], Tensor | None], modules: Iterable[nn.Module]) -> ExitStack:
    """While open, call ``function`` with each output of the modules, and replace the output by what it returns."""
    hooks = ExitStack()
    for module in modules:
        hooks.enter_context(module.register_forward_hook(lambda module, arguments, output: function(output)))
    return hooks


class Wiring:
    """Finds the gated units that each input of a layer depends on, whatever lies between: pooling, sums, shortcuts.

    All gates are closed, some units output a mark instead of 0, and the inputs that change depend on these units.

    Args:
        layers: whose inputs are observed.
        gates: layer name -> its gate.
        run: the forward pass.
    """

    def __init__(self, layers: Iterable[ProtectedLayer], gates: Mapping[str, Gate], run: Run) -> None:
        self.layers = list(layers)
        self.gates = gates
        self.run = run
        self._closed = self._inputs({}, None)

    def attention(self, attention: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the attention to each column of ``[W | b]``: the largest of all units that its input depends on.

        What no gate can close (the model's own inputs, the input 1 of a bias) has attention 1.

        Args:
            attention: layer name -> attention to its units, for each gate.
        """
        units = {gate: torch.arange(len(values)) for gate, values in attention.items()}
        # Marked together: the units of one gate; units with the same bit in their numbers. All bits identify a unit.
        partitions = [{gate: torch.full_like(units[gate], number) for number, gate in enumerate(units)}]
        bits = max(map(len, units.values()), default=0).bit_length()
        partitions += [{gate: numbers >> bit & 1 for gate, numbers in units.items()} for bit in range(bits)]
        may_depend = {
            (layer, gate): torch.ones(len(values), vectors.shape[1], dtype=torch.bool)
            for layer, vectors in self._closed.items()
            for gate, values in attention.items()
        }
        for parts in partitions:
            count = 1 + max((int(part.max()) for part in parts.values()), default=-1)
            changed = [self._changed({gate: part == k for gate, part in parts.items()}) for k in range(count)]
            for layer, gate in may_depend:
                may_depend[layer, gate] &= torch.stack([by[layer] for by in changed])[parts[gate]]
        from_samples = self._changed({}, of_samples=True)
        behind = {layer: (x.ne(0).any(0) | from_samples[layer]).float() for layer, x in self._closed.items()}
        for (layer, gate), depends in may_depend.items():
            largest = torch.where(depends, attention[gate].cpu().unsqueeze(1), 0).amax(0)
            behind[layer] = torch.maximum(behind[layer], largest)
        return behind

    def _changed(self, marked: Mapping[str, Tensor], *, of_samples: bool = False) -> dict[str, Tensor]:
        """Return, for each layer, which columns of ``[W | b]`` have other inputs when units or samples are marked."""
        changed = {name: torch.zeros_like(vectors[0]).bool() for name, vectors in self._closed.items()}
        for mark in MARKS:
            forced = {name: torch.where(mask, mark, 0.0) for name, mask in marked.items()}
            seen = self._inputs(forced, mark if of_samples else None)
            for name, vectors in self._closed.items():
                comparable = name in seen and seen[name].shape == vectors.shape
                changed[name] |= (seen[name] != vectors).any(0) if comparable else True
        return changed

    @torch.no_grad()
    def _inputs(self, forced: Mapping[str, Tensor], mark: float | None) -> dict[str, Tensor]:
        """Return all input vectors of each layer while gates output ``forced``, or 0."""
        seen: dict[str, list[Tensor]] = {}

        def observe(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> None:
            seen.setdefault(layer.name, []).append(layer.vectors(module, x).cpu())

        for name, gate in self.gates.items():
            gate.forced = forced.get(name, torch.zeros(gate.layer.outputs))
        try:
            # Some models and losses raise errors for marks; layers that were not called by then count as changed.
            with observed(self.layers, observe), suppress(*(Exception,) if forced or mark is not None else ()):
                self.run(mark)
        finally:
            for gate in self.gates.values():
                gate.forced = None
        return {name: torch.cat(vectors) for name, vectors in seen.items()}
