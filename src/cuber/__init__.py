"""Continual learning with backward knowledge transfer: CUBER, its relatives, and everything around them."""

from cuber.errors import CuberError, CuberWarning
from cuber.methods import CUBER, GPM, TRGP, FineTune, Method
from cuber.networks import MultiHead
from cuber.version import __version__

__all__ = [
    "CUBER",
    "GPM",
    "TRGP",
    "CuberError",
    "CuberWarning",
    "FineTune",
    "Method",
    "MultiHead",
    "__version__",
]
