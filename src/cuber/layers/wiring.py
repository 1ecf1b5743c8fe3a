"""Which gated units stand behind each input of a layer, whatever lies between: pooling, flattening, sums, shortcuts.

Nobody has to know what lies between. All gates are closed, units are marked by putting out something else than 0, and
the inputs at which something else arrives than before are the ones that they stand behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import torch
from torch import Tensor, nn

from cuber.layers.gates import Gate
from cuber.layers.protected import ProtectedLayer, observed

MARKS = (torch.nan, 1.0)
"""NaN survives whatever is computed with it, but not every comparison; a plain 1 survives those."""

Pass = Callable[[float | None], object]
"""A few samples through the model; with all their numbers replaced by one, if it is given."""
Reached = dict[str, Tensor]
"""Layer -> for each column of ``[W | b]``, whether marks arrive there."""


class Wiring:
    """The ways from gates to the inputs of the layers after them, on the route that ``run`` takes."""

    def __init__(self, layers: Iterable[ProtectedLayer], gates: Mapping[str, Gate], run: Pass) -> None:
        self.layers = list(layers)
        self.gates = gates
        self.run = run
        self._closed = self._inputs({}, None)

    def attention(self, attention: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For each column of ``[W | b]`` the attention of the unit behind it, the largest where there are several.

        What no gate can close (the model's own inputs, the 1 that a bias is the weight of) has attention 1.
        """
        units = {name: len(values) for name, values in attention.items()}
        from_gate = {name: self._reached({name: torch.ones(count).bool()}) for name, count in units.items()}
        bits = [self._by_bit(units, bit) for bit in range(max(units.values(), default=0).bit_length())]
        behind: dict[str, Tensor] = {}
        for layer, always in self._open_anyway().items():
            behind[layer] = always.float()
            for gate, values in attention.items():
                own_bits = [(one[layer], zero[layer]) for one, zero in bits]
                behind[layer] = torch.maximum(behind[layer], _largest(values, from_gate[gate][layer], own_bits))
        return behind

    def _by_bit(self, units: Mapping[str, int], bit: int) -> tuple[Reached, Reached]:
        """Where units arrive whose number has this bit, and where those without it: all bits together name the unit."""
        has = {name: (torch.arange(count) >> bit & 1).bool() for name, count in units.items()}
        return self._reached(has), self._reached({name: ~mask for name, mask in has.items()})

    def _open_anyway(self) -> Reached:
        """What is there with all gates closed, and what the samples themselves reach."""
        samples = self._reached({}, of_samples=True)
        return {name: vectors.ne(0).any(0) | samples[name] for name, vectors in self._closed.items()}

    def _reached(self, marked: Mapping[str, Tensor], *, of_samples: bool = False) -> Reached:
        reached = {name: torch.zeros_like(vectors[0]).bool() for name, vectors in self._closed.items()}
        for mark in MARKS:
            forced = {name: torch.where(mask, mark, 0.0) for name, mask in marked.items()}
            seen = self._inputs(forced, mark if of_samples else None)
            for name, vectors in self._closed.items():
                comparable = name in seen and seen[name].shape == vectors.shape
                reached[name] |= (seen[name] != vectors).any(0) if comparable else True
        return reached

    @torch.no_grad()
    def _inputs(self, forced: Mapping[str, Tensor], mark: float | None) -> dict[str, Tensor]:
        """The input vectors of every layer that is passed, one below the other, while gates put out what they must."""
        seen: dict[str, list[Tensor]] = {}

        def observe(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> None:
            seen.setdefault(layer.name, []).append(layer.vectors(module, x).cpu())

        for name, gate in self.gates.items():
            gate.forced = forced.get(name, torch.zeros(gate.layer.outputs))
        try:
            # Not every model and loss can compute with marks; what has not been passed by then counts as reached.
            with observed(self.layers, observe), suppress(*(Exception,) if forced or mark is not None else ()):
                self.run(mark)
        finally:
            for gate in self.gates.values():
                gate.forced = None
        return {name: torch.cat(vectors) for name, vectors in seen.items()}


def _largest(values: Tensor, from_gate: Tensor, bits: list[tuple[Tensor, Tensor]]) -> Tensor:
    """For each input the largest of a gate's values, over the units that may stand behind it."""
    possible = from_gate.unsqueeze(1).repeat(1, len(values))
    for bit, (one, zero) in enumerate(bits):
        has = (torch.arange(len(values)) >> bit & 1).bool()
        possible &= torch.where(has, one.unsqueeze(1), zero.unsqueeze(1))
    return torch.where(possible, values.cpu(), 0).amax(1)
