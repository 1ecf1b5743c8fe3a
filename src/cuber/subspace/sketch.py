"""A sketch of a layer's input vectors, for layers that are too wide for a d x d matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from cuber.subspace.gram import NUMBERS_AT_ONCE, Gram, Residual, descending, left_over
from cuber.subspace.precision import full_precision, has_float64

SHRUNK = 0.2
"""Share of the rows that lose energy when rows are merged. None lost would be more exact on most data, but without the
bound on what one direction can lose; all of them, as in frequent directions, makes energies look far too small."""


class Sketch(Gram):
    """The sum M of ``x x'`` over input vectors x: exact along the columns of a basis, and in few rows outside it.

    Outside the basis the vectors are kept as rows until there are ``4 * rank``. Then the rows are rotated onto their
    principal directions, the weaker half is dropped, and the weakest of the others lose as much energy as the
    strongest of those that were dropped (frequent directions, Ghashami et al., 2016, with the shrinking of Desai et
    al., 2016). So no direction is given more energy than it has, and none loses more than ``1 / (SHRUNK * 2 * rank)``
    of the energy outside the basis. The total ``energy`` is summed exactly.

    Args:
        basis: P, d x K, orthonormal.
        rank: number of directions outside the basis that should be found.

    >>> sketch = Sketch(torch.eye(3)[:, :1], rank=1)
    >>> sketch.add(torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]]))
    >>> sketch.energy, sketch.residual(torch.eye(3)[:, :1]).energies
    (25.0, tensor([16.], dtype=torch.float64))
    """

    def __init__(self, basis: Tensor, rank: int) -> None:
        super().__init__(len(basis))
        self.basis = basis if has_float64(basis.device) else basis.cpu()
        self.kept = 2 * rank
        """Number of rows after they were merged."""
        self.rows: Tensor | None = None
        """At most 2 kept x (d + K): vectors outside the basis, and their coordinates along it, rotated alike."""
        self.inside = torch.zeros(basis.shape[1], basis.shape[1], dtype=torch.float64, device=self.basis.device)
        """``P' M P``."""
        self._energy = 0.0

    def add(self, vectors: Tensor) -> None:
        """Add the rows of ``vectors`` (m x d)."""
        vectors = vectors.detach().to(self.basis.device, torch.promote_types(vectors.dtype, torch.float32))
        with full_precision(vectors.device):
            for part in vectors.split(max(1, min(self.kept, NUMBERS_AT_ONCE // self.dimension))):
                self._add(part)

    def _add(self, vectors: Tensor) -> None:
        basis = self.basis.to(vectors)
        self.note(vectors)
        self._energy += float(vectors.double().square().sum())
        if self._energy < float("inf"):  # input_grams refuses an infinite energy
            along = vectors @ basis
            self.inside += along.double().T @ along.double()
            self._append(torch.cat([torch.addmm(vectors, along, basis.T, alpha=-1), along], dim=1))

    def merge(self, other: Sketch) -> None:
        """Add all vectors that another sketch, outside the same basis, has seen."""
        self.count, self.sum = self.count + other.count, torch.as_tensor(other.sum).to(self.inside) + self.sum
        self.precision = max(self.precision, other.precision)
        self._energy += other.energy
        self.inside += other.inside.to(self.inside)
        if other.rows is not None:
            with full_precision(self.basis.device):
                for part in other.rows.to(self.basis.device).split(self.kept):
                    self._append(part)

    def to_send(self) -> Sketch:
        """Return a copy for another process to merge, on the CPU, without the basis, which that process has."""
        sent = Sketch(self.basis[:, :0].cpu(), self.kept // 2)
        sent.count, sent.sum, sent.precision = self.count, torch.as_tensor(self.sum).cpu(), self.precision
        sent._energy, sent.inside = self._energy, self.inside.cpu()
        sent.rows = None if self.rows is None else self.rows.cpu()
        return sent

    def _append(self, rows: Tensor) -> None:
        """Add at most ``kept`` rows."""
        held = rows if self.rows is None else torch.cat([self.rows.to(rows.dtype), rows])
        self.rows = self._merged(held) if len(held) > 2 * self.kept else held

    def _merged(self, rows: Tensor) -> Tensor:
        vectors = rows[:, : self.dimension]
        largest = torch.linalg.vector_norm(vectors, torch.inf)
        vectors = vectors / largest.clamp_min(torch.finfo(rows.dtype).tiny)  # squares must not overflow
        energies, combinations = descending(vectors @ vectors.T)
        energies = energies.clamp_min(torch.finfo(rows.dtype).tiny)
        shrunk = energies[: self.kept].clone()
        shrunk[int((1 - SHRUNK) * self.kept) :] -= energies[self.kept]
        factors = (shrunk / energies[: self.kept]).sqrt()
        return (combinations[:, : self.kept] * factors).T @ rows

    @property
    def energy(self) -> float:
        return self._energy

    @property
    def matrix(self) -> Tensor:
        """M as the sketch has it, d x d."""
        return self.within(torch.eye(self.dimension, dtype=torch.float64, device=self.basis.device))

    def along(self, basis: Tensor) -> Tensor:
        inside, outside, shared = self._coordinates(basis)
        return (inside * (self.inside @ inside)).sum(0) + (outside * (outside + 2 * shared)).sum(0)

    def within(self, basis: Tensor) -> Tensor:
        inside, outside, shared = self._coordinates(basis)
        mixed = shared.T @ outside
        return inside.T @ self.inside @ inside + mixed + mixed.T + outside.T @ outside

    def _coordinates(self, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``P' B``, and the two parts of the rows along B: outside the pool's columns, and inside."""
        assert self.rows is not None
        basis, rows = basis.to(self.inside), self.rows.to(self.inside)
        inside = self.basis.to(basis).T @ basis
        return inside, rows[:, : self.dimension] @ basis, rows[:, self.dimension :] @ inside

    def _residual(self, basis: Tensor) -> Residual:
        assert self.rows is not None
        return left_over(self.rows[:, : self.dimension].double(), basis.to(self.inside))

    @property
    def _rounding(self) -> float:
        return torch.finfo(torch.float32).eps
