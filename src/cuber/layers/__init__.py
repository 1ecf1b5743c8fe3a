"""What the methods must know of a layer: its input vectors, and its weight as a matrix that acts on them.

Besides, what a learner changes in a model as a whole: frozen parameters and normalization statistics (``model.py``).

A new layer type is one file here: a subclass of :class:`Rule` under :func:`register`, imported below.
"""

from cuber.layers import convolution
from cuber.layers.gates import Gate, Wiring, find_gated_modules, strip_gates
from cuber.layers.model import (
    Freezer,
    Normalization,
    Statistics,
    claim,
    constant_statistics,
    evaluation_mode,
    normalized_by_batch,
    release,
)
from cuber.layers.per_sample import Use, sample_gradients, sum_of_squares, uses_of
from cuber.layers.protected import BACKENDS, ProtectedLayer, Rule, observed, register

__all__ = [
    "BACKENDS",
    "Freezer",
    "Gate",
    "Normalization",
    "ProtectedLayer",
    "Rule",
    "Statistics",
    "Use",
    "Wiring",
    "claim",
    "constant_statistics",
    "convolution",
    "evaluation_mode",
    "find_gated_modules",
    "normalized_by_batch",
    "observed",
    "register",
    "release",
    "sample_gradients",
    "strip_gates",
    "sum_of_squares",
    "uses_of",
]
