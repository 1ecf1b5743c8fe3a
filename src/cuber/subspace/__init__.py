"""The mathematics on plain tensors, without networks.

A weight or gradient is ``out x d``, a batch of input vectors ``m x d`` (one per row), a basis ``d x K`` with
orthonormal columns.
"""

from cuber.subspace.change import Calibration, ChangeTest, TwoSidedTest, log_bets, log_odds_against
from cuber.subspace.constraint import Anchor, Constraint, Projector, coordinates
from cuber.subspace.density import Density
from cuber.subspace.gram import WIDE, Gram, complement
from cuber.subspace.memory import (
    BACKWARD_TRANSFER,
    FORWARD_TRANSFER,
    NO_FORGETTING,
    LayerMemory,
    LearnedScaling,
    Pool,
    PrunedGradient,
    Regime,
    held_share,
)
from cuber.subspace.penalty import NormPenalty, Penalty, SquaredPenalty, energy_weights, make_penalty
from cuber.subspace.posterior import TaskDensities
from cuber.subspace.precision import full_precision, has_float64, in_float64
from cuber.subspace.quadratic import DampedGradient, QuadraticModel
from cuber.subspace.scaling import Scaling, supports_of
from cuber.subspace.sketch import Sketch

__all__ = [
    "BACKWARD_TRANSFER",
    "FORWARD_TRANSFER",
    "NO_FORGETTING",
    "WIDE",
    "Anchor",
    "Calibration",
    "ChangeTest",
    "Constraint",
    "DampedGradient",
    "Density",
    "Gram",
    "LayerMemory",
    "LearnedScaling",
    "NormPenalty",
    "Penalty",
    "Pool",
    "Projector",
    "PrunedGradient",
    "QuadraticModel",
    "Regime",
    "Scaling",
    "Sketch",
    "SquaredPenalty",
    "TaskDensities",
    "TwoSidedTest",
    "complement",
    "coordinates",
    "energy_weights",
    "full_precision",
    "has_float64",
    "held_share",
    "in_float64",
    "log_bets",
    "log_odds_against",
    "make_penalty",
    "supports_of",
]
