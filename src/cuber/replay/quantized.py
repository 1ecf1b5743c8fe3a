"""Lossless quantization: tensors with few different values, stored as uint8 codes and a table of the values.

8-bit images have at most 256 values per channel, whatever normalization a loader has applied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype by element size: the same bits as integers distinguish -0.0 from 0.0, and keep NaN."""


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A tensor with one row per sample that can be restored bit by bit.

    ``codes`` are positions in the table, or the values themselves if ``table`` is None. The table is ``1 x values``,
    or ``channels x values`` if each channel (dimension 1) has its own.

    >>> images = QuantizedTensor.of(torch.randint(256, (100, 3, 8, 8)) / 255)
    >>> images.codes.dtype, images.rows(torch.tensor([5, 7])).shape
    (torch.uint8, torch.Size([2, 3, 8, 8]))
    """

    codes: Tensor
    table: Tensor | None

    @classmethod
    def of(cls, values: Tensor) -> QuantizedTensor:
        """Quantize a tensor with one table or one per channel, or leave it as it is if that takes fewer bytes."""
        plain = cls(values, None)
        if values.element_size() not in INTEGERS or not values.numel():
            return plain
        bits = values.view(INTEGERS[values.element_size()])
        quantized = _quantize(bits[:, None]) or (_quantize(bits) if bits.dim() > 1 else None)
        if quantized is None:
            return plain
        codes, table = quantized
        return min(plain, cls(codes.reshape(values.shape), table.view(values.dtype)), key=lambda some: some.nbytes)

    def rows(self, index: Tensor) -> Tensor:
        """Return the values of some rows."""
        codes = self.only(index).codes
        if self.table is None:
            return codes
        if len(self.table) == 1:
            return self.table[0][codes.long()]
        channel = torch.arange(len(self.table), device=codes.device)
        return self.table[channel.view(1, -1, *[1] * (codes.dim() - 2)), codes.long()]

    def only(self, index: Tensor) -> QuantizedTensor:
        """Return the quantized tensor of some rows."""
        return QuantizedTensor(self.codes.index_select(0, index.to(self.codes.device)), self.table)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + (0 if self.table is None else self.table.nbytes)


def _quantize(bits: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return codes and table of a ``samples x channels x ...`` tensor; None if a channel has over 256 values."""
    tables, codes = [], []
    for channel in bits.unbind(1):
        values, positions = channel.unique(return_inverse=True)
        if len(values) > 256:
            return None
        tables.append(values)
        codes.append(positions.to(torch.uint8))
    return torch.stack(codes, dim=1), torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)
