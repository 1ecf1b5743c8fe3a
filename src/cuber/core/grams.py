"""Gram matrices of inputs that several processes have seen."""

from __future__ import annotations

import torch

from cuber.core import distributed
from cuber.layers import ProtectedLayer
from cuber.subspace import Gram, Sketch


def sum_gram(gram: Gram | None, total: Gram, layer: ProtectedLayer) -> Gram | None:
    """Return the Gram matrix of a layer's inputs in all processes; None where none of them has any.

    Args:
        gram: of this process, if it has seen any.
        total: an empty one, or an empty sketch.
        layer: whose inputs they are.
    """
    if isinstance(total, Sketch):
        for part in distributed.gather(gram.to_send() if isinstance(gram, Sketch) else None):
            if part is not None:
                total.merge(part)
        return total if total.count else None
    device = layer.parameter.device
    count = sum(distributed.gather_count(0 if gram is None else gram.count))
    if count < layer.dimension:  # then the vectors are fewer numbers than their sum
        for vectors in distributed.gather(None if gram is None else gram.vectors.cpu()):
            if vectors is not None:
                total.add(vectors.to(device))
        return total if total.count else None
    none = torch.zeros(layer.dimension + 1, layer.dimension, dtype=torch.float64, device=device)
    own = none if gram is None else torch.cat([gram.matrix, torch.as_tensor(gram.sum).unsqueeze(0)])
    matrix, sums = distributed.sum_tensors([own])[0].split([layer.dimension, 1])
    precision = max(distributed.gather(0.0 if gram is None else gram.precision))
    return Gram.of(matrix, sums[0], count, precision)
