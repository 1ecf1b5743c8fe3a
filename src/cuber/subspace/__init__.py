"""The mathematics on plain tensors: nothing in this room knows what a network is.

Conventions of the whole room: a weight or a gradient is ``out x d``, a batch of input vectors ``m x d`` (one
per row), a basis ``d x K`` with orthonormal columns.
"""

from cuber.subspace.exact import NUMBERS_AT_ONCE, in_float64
from cuber.subspace.gradient import PrunedGradient
from cuber.subspace.gram import Gram
from cuber.subspace.held import ROUNDING, Held, PartlyHeld, Reading
from cuber.subspace.penalty import NormRestraint, Restraint, SquaredRestraint, energy_weights
from cuber.subspace.pool import HIGHEST_THRESHOLD, Pool
from cuber.subspace.projection import Projector
from cuber.subspace.regimes import (
    BACKWARD_TRANSFER,
    FORWARD_TRANSFER,
    NO_FORGETTING,
    Regime,
    decide_regimes,
    projection_ratios,
)
from cuber.subspace.scaling import LearnedScaling, Scaling, supports_of

__all__ = [
    "BACKWARD_TRANSFER",
    "FORWARD_TRANSFER",
    "HIGHEST_THRESHOLD",
    "NO_FORGETTING",
    "NUMBERS_AT_ONCE",
    "ROUNDING",
    "Gram",
    "Held",
    "LearnedScaling",
    "NormRestraint",
    "PartlyHeld",
    "Pool",
    "Projector",
    "PrunedGradient",
    "Reading",
    "Regime",
    "Restraint",
    "Scaling",
    "SquaredRestraint",
    "decide_regimes",
    "energy_weights",
    "in_float64",
    "projection_ratios",
    "supports_of",
]
