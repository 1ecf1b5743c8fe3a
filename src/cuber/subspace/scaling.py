"""The scaled weight projection: how a new task reads what an old one has learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn

from cuber.subspace.held import Held

Columns = Tensor | slice


@dataclass
class LearntScaling:
    """What is kept of a scaling: A, or ``support @ matrix`` where that is smaller."""

    matrix: Tensor
    support: Tensor | None = None

    def whole(self) -> Tensor:
        """A."""
        return self.matrix if self.support is None else self.support @ self.matrix

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes + (0 if self.support is None else self.support.nbytes)


@dataclass(eq=False)
class Scaling:
    """``Q = I + A`` on one old task's subspace: ``W~ = W + (W B) A B'``. A starts at 0, so W~ starts at W.

    A is ``support @ matrix``, or the matrix itself where there is no support. The gradient of A, ``(W B)' G B``, has no
    part outside the rows of ``W B``; where these are few, so is what there is of A to learn, and orthonormal
    coordinates for it are as good as A's own: gradient descent makes the same steps in both.
    """

    columns: Tensor
    """B itself, or a pool that B is a part of: what is out of one pool is multiplied with together."""
    matrix: nn.Parameter
    support: Tensor | None = None
    """r x q, orthonormal."""
    owned: Tensor | None = None
    """Which of the columns make up B; None: all."""

    @classmethod
    def identity(
        cls, columns: Tensor, *, like: Tensor, support: Tensor | None = None, owned: Tensor | None = None
    ) -> Scaling:
        """A scaling that changes nothing yet, for a weight such as ``like``."""
        rank = columns.shape[1] if owned is None else int(owned.sum())
        rows = rank if support is None else support.shape[1]
        return cls(columns.to(like), nn.Parameter(like.new_zeros(rows, rank)), support, owned)

    @property
    def basis(self) -> Tensor:
        """B."""
        return self.columns if self.owned is None else self.columns[:, self.owned]

    @property
    def left(self) -> Tensor:
        """``W~ = W + (W left) matrix B'``."""
        return self.basis if self.support is None else self.basis @ self.support.to(self.columns)

    def learnt(self) -> LearntScaling:
        """A copy of what has been learnt so far."""
        return LearntScaling(self.matrix.detach().clone(), self.support)

    def follow(self, weight: Tensor) -> None:
        """Go where the weight has gone, when a model is moved to another device or type."""
        self.columns = self.columns.to(weight)
        if self.matrix.device != weight.device or self.matrix.dtype != weight.dtype:
            self.matrix.data = self.matrix.data.to(weight)


def support_of(weight: Tensor, basis: Tensor, free: Tensor) -> Tensor | None:
    """The support of every A that can be learnt while W may move along the ``free`` columns of the basis only.

    None where it is not much smaller than A.
    """
    outputs, rank = len(weight), basis.shape[1]
    if 2 * (outputs + int(free.sum())) > rank:
        return None
    read = torch.cat([(weight.to(basis) @ basis).T, torch.eye(rank).to(basis)[:, free]], dim=1)
    exact = read.cpu().double() if read.device.type == "mps" else read.double()  # Apple's GPUs have no float64
    return torch.linalg.qr(exact).Q.to(basis)


def scaled_weight(weight: Tensor, scalings: Sequence[Scaling]) -> Tensor:
    """``W + sum over j of (W B_j) A_j B_j'``."""
    return Mixing(scalings, weight).weight(weight) if scalings else weight


def scaled_input(vectors: Tensor, scalings: Sequence[Scaling]) -> Tensor:
    """The same from the other side: ``W~ x = W x~`` with ``x~ = x + sum over j of B_j A_j' B_j' x``."""
    return Mixing(scalings, vectors).input(vectors) if scalings else vectors


class Mixing:
    """Several scalings of one weight, with what their bases have in common multiplied once.

    ``x -> x + sum over j of ((x B_j) M_j') L_j'`` for inputs, and its adjoint for weights.
    """

    def __init__(self, scalings: Sequence[Scaling], weight: Tensor, held: Held | None = None) -> None:
        self.scalings = list(scalings)
        self.held = held
        for scaling in self.scalings:
            scaling.follow(weight)
        self.bases, self.sources = _joined(self.scalings)
        """All the B_j, and which of the columns belong to which."""
        self.lefts, self.targets = self.bases, list(self.sources)
        """All the L_j, likewise."""
        thin = [scaling for scaling in self.scalings if scaling.support is not None]
        if thin:
            whole = [] if len(thin) == len(self.scalings) else [self.bases]
            self.lefts = torch.cat([*whole, *(scaling.left for scaling in thin)], dim=1)
            start = sum(columns.shape[1] for columns in whole)
            for position, scaling in enumerate(self.scalings):
                if scaling.support is not None:
                    self.targets[position] = slice(start, start := start + len(scaling.matrix))

    def fits(self, scalings: Sequence[Scaling], weight: Tensor, held: Held | None = None) -> bool:
        """Whether these are still the scalings, and where the weight is."""
        same = self.scalings == scalings and self.held is held  # no two scalings are equal: identities are compared
        return same and self.bases.device == weight.device and self.bases.dtype == weight.dtype

    @property
    def matrices(self) -> list[nn.Parameter]:
        """All the M_j."""
        return [scaling.matrix for scaling in self.scalings]

    def input(self, vectors: Tensor) -> Tensor:
        """``x~`` for every vector: the last dimension of a tensor of any shape."""
        return vectors + self.scaled(self.seen(vectors)) @ self.lefts.mT

    def weight(self, weight: Tensor, moved: Tensor | None = None) -> Tensor:
        """``W~``; of a weight that is held, by how far it has ``moved``."""
        read = weight @ self.lefts if moved is None else self.read_of(moved)
        return weight + self.spread(self.split(read)) @ self.bases.mT

    # The steps on the way

    def seen(self, vectors: Tensor) -> list[Tensor]:
        """``x B_j`` for each of the scalings."""
        coordinates = vectors @ self.bases
        return [_select(coordinates, source) for source in self.sources]

    def scaled(self, seen: list[Tensor]) -> Tensor:
        """All the ``(x B_j) M_j'``, as coordinates in the ``lefts``."""
        parts = [part @ scaling.matrix.mT for part, scaling in zip(seen, self.scalings, strict=True)]
        return _place(parts, self.targets, self.lefts.shape[1])

    def split(self, read: Tensor) -> list[Tensor]:
        """Coordinates in the ``lefts``, for each of the scalings."""
        return [_select(read, target) for target in self.targets]

    def spread(self, read: list[Tensor]) -> Tensor:
        """The sum of all ``(W L_j) M_j``, as coordinates in the ``bases``."""
        parts = [part @ scaling.matrix for part, scaling in zip(read, self.scalings, strict=True)]
        return _place(parts, self.sources, self.bases.shape[1])

    # What is read of a weight that is held

    def read_of(self, moved: Tensor) -> Tensor:
        """All the ``W L_j`` side by side, for a weight that has moved so far."""
        return self.read + moved.to(self.turn) @ self.turn if moved.shape[1] else self.read

    def add_free(self, vectors: Tensor, scaled: Tensor) -> Tensor:
        """x, and of ``x~ - x`` what lies along the free columns: nothing else of it can move the weight."""
        assert self.held is not None
        free = self.held.free
        return vectors + (scaled @ self.turn.mT) @ free.to(vectors).mT if free.shape[1] else vectors

    @cached_property
    def read(self) -> Tensor:
        """What is read of the anchor."""
        assert self.held is not None
        return self.held.anchor @ self.lefts

    @cached_property
    def turn(self) -> Tensor:
        """What a move along the free columns is in what is read: f x q."""
        assert self.held is not None
        return self.held.free.to(self.lefts).mT @ self.lefts


def _joined(scalings: list[Scaling]) -> tuple[Tensor, list[Columns]]:
    """The columns of all bases, those out of one pool once, and where in them each basis is."""
    pool, owned = scalings[0].columns, [scaling.owned for scaling in scalings if scaling.owned is not None]
    if len(owned) == len(scalings) and all(scaling.columns is pool for scaling in scalings):
        union = torch.stack(owned).any(0)
        return pool if bool(union.all()) else pool[:, union], [_columns(mask[union]) for mask in owned]
    starts = torch.tensor([0, *(scaling.matrix.shape[1] for scaling in scalings)]).cumsum(0).tolist()
    return torch.cat([scaling.basis for scaling in scalings], dim=1), [slice(*ends) for ends in pairwise(starts)]


def _columns(mask: Tensor) -> Columns:
    """The columns that are True: a slice where they lie together, which needs no copy."""
    indices = mask.nonzero().flatten()
    first, count = (int(indices[0]), len(indices)) if len(indices) else (0, 0)
    return slice(first, first + count) if bool(mask[first : first + count].all()) else indices


def _select(coordinates: Tensor, columns: Columns) -> Tensor:
    return coordinates[..., columns] if isinstance(columns, slice) else coordinates.index_select(-1, columns)


def _place(parts: list[Tensor], places: list[Columns], width: int) -> Tensor:
    """The sum of the parts, each at its columns."""
    if _side_by_side(places, width):
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
    total = parts[0].new_zeros(*parts[0].shape[:-1], width)
    for part, columns in zip(parts, places, strict=True):
        if isinstance(columns, slice):
            columns = torch.arange(columns.start, columns.stop, device=part.device)
        total = total.index_add(-1, columns, part)
    return total


def _side_by_side(places: list[Columns], width: int) -> bool:
    ends = [0]
    for columns in places:
        if not isinstance(columns, slice) or columns.start != ends[-1]:
            return False
        ends.append(columns.stop)
    return ends[-1] == width
