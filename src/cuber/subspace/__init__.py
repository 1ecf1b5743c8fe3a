"""The mathematics on plain tensors, without networks.

A weight or gradient is ``out x d``, a batch of input vectors ``m x d`` (one per row), a basis ``d x K`` with
orthonormal columns.
"""

from cuber.subspace.constraint import Anchor, Constraint
from cuber.subspace.exact import NUMBERS_AT_ONCE, in_float64
from cuber.subspace.gram import Gram
from cuber.subspace.memory import (
    BACKWARD_TRANSFER,
    FORWARD_TRANSFER,
    NO_FORGETTING,
    LayerMemory,
    PrunedGradient,
    Regime,
)
from cuber.subspace.penalty import NormPenalty, Penalty, SquaredPenalty, energy_weights, make_penalty
from cuber.subspace.pool import HIGHEST_THRESHOLD, Pool
from cuber.subspace.projection import Projector
from cuber.subspace.scaling import LearnedScaling, Scaling, supports_of

__all__ = [
    "BACKWARD_TRANSFER",
    "FORWARD_TRANSFER",
    "HIGHEST_THRESHOLD",
    "NO_FORGETTING",
    "NUMBERS_AT_ONCE",
    "Anchor",
    "Constraint",
    "Gram",
    "LayerMemory",
    "LearnedScaling",
    "NormPenalty",
    "Penalty",
    "Pool",
    "Projector",
    "PrunedGradient",
    "Regime",
    "Scaling",
    "SquaredPenalty",
    "energy_weights",
    "in_float64",
    "make_penalty",
    "supports_of",
]
