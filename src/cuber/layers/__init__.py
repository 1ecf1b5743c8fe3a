"""What the methods must know of a layer: its input vectors, and its weight as a matrix that acts on them.

Besides, what a learner changes in a model as a whole: frozen parameters (``model.py``) and normalization layers.

A new layer type is one file here: a subclass of :class:`Rule` under :func:`register`, imported below.
"""

from cuber.layers import attention, convolution, linear, recurrent
from cuber.layers.attached import strip
from cuber.layers.composite import CompositeRule, Part, Weights
from cuber.layers.gates import Gate, Wiring, find_gated_modules, strip_gates
from cuber.layers.model import evaluation_mode
from cuber.layers.normalization import (
    Normalization,
    constant_statistics,
    has_layer_norm,
    normalized_by_batch,
    observed_norms,
)
from cuber.layers.per_sample import Use, sample_gradients, sum_of_squares, uses_of
from cuber.layers.protected import BACKENDS, ProtectedLayer, attached, observed
from cuber.layers.rule import RULES, Rule, register
from cuber.layers.scan import scan
from cuber.layers.table import Table, UsedRows

__all__ = [
    "BACKENDS",
    "RULES",
    "CompositeRule",
    "Gate",
    "Normalization",
    "Part",
    "ProtectedLayer",
    "Rule",
    "Table",
    "Use",
    "UsedRows",
    "Weights",
    "Wiring",
    "attached",
    "attention",
    "constant_statistics",
    "convolution",
    "evaluation_mode",
    "find_gated_modules",
    "has_layer_norm",
    "linear",
    "normalized_by_batch",
    "observed",
    "observed_norms",
    "recurrent",
    "register",
    "sample_gradients",
    "scan",
    "strip",
    "strip_gates",
    "sum_of_squares",
    "uses_of",
]
