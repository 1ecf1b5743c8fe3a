"""What the methods must know of a layer: its input vectors, and its weight as a matrix that acts on them.

A new layer type is one file here: a subclass of :class:`Rule` under :func:`register`, imported below.
"""

from cuber.layers import convolution, linear
from cuber.layers.gates import Gate, find_places, strip_gates
from cuber.layers.normalization import Normalization, Statistics, evaluation_mode
from cuber.layers.protected import ProtectedLayer, observed
from cuber.layers.rule import Rule, register
from cuber.layers.scan import Scan, scan
from cuber.layers.wiring import Wiring

__all__ = [
    "Gate",
    "Normalization",
    "ProtectedLayer",
    "Rule",
    "Scan",
    "Statistics",
    "Wiring",
    "convolution",
    "evaluation_mode",
    "find_places",
    "linear",
    "observed",
    "register",
    "scan",
    "strip_gates",
]
