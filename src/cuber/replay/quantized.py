"""Tensors of few different values, kept as one byte for each and a table of the values: nothing is lost.

Images that were bytes once have at most 256 values in each channel, however a loader has normalized them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CODES = 256
"""What a byte can tell apart."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes per number -> whole numbers with the same bits: these know -0.0 from 0.0, and one NaN from another."""


@dataclass(frozen=True, eq=False)
class Column:
    """One tensor, a row for each sample, in as few bytes as it can be had back from, bit for bit.

    >>> column = Column.of(torch.randint(256, (100, 3, 8, 8)) / 255)
    >>> column.codes.dtype, column.rows(torch.tensor([5, 7])).shape
    (torch.uint8, torch.Size([2, 3, 8, 8]))
    """

    codes: Tensor
    """Positions in the table, or the values themselves where there is none."""
    table: Tensor | None
    """1 x values, or channels x values where each channel (dimension 1) has its own."""

    @classmethod
    def of(cls, values: Tensor) -> Column:
        """The column that takes the least room."""
        candidates = [cls(values, None)]
        bits = values.view(BITS[values.element_size()]) if values.element_size() in BITS else None
        if bits is not None and values.element_size() > 1 and values.numel():
            for channels in [bits[:, None], bits] if bits.dim() > 1 else [bits[:, None]]:
                coded = _code(channels)
                if coded is not None:
                    codes, table = coded
                    candidates.append(cls(codes.reshape(values.shape), table.view(values.dtype)))
                    break
        return min(candidates, key=lambda column: column.nbytes)

    def rows(self, index: Tensor) -> Tensor:
        """The values of some rows."""
        codes = self.codes.index_select(0, index.to(self.codes.device))
        if self.table is None:
            return codes
        if len(self.table) == 1:
            return self.table[0][codes.long()]
        channel = torch.arange(len(self.table), device=codes.device)
        return self.table[channel.view(1, -1, *[1] * (codes.dim() - 2)), codes.long()]

    def only(self, index: Tensor) -> Column:
        """The column of some rows."""
        return Column(self.codes.index_select(0, index.to(self.codes.device)), self.table)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + (0 if self.table is None else self.table.nbytes)

    def state(self) -> list[Any]:
        return [self.codes, self.table]


def _code(bits: Tensor) -> tuple[Tensor, Tensor] | None:
    """Codes and table of samples x channels x ..., None where a channel has more values than a byte can tell apart."""
    tables, codes = [], []
    for channel in bits.unbind(1):
        values, positions = channel.unique(return_inverse=True)
        if len(values) > CODES:
            return None
        tables.append(values)
        codes.append(positions.to(torch.uint8))
    table = torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)
    return torch.stack(codes, dim=1), table
