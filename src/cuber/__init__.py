"""Continual learning with backward knowledge transfer: CUBER, its relatives, and everything around them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cuber.version import __version__

if TYPE_CHECKING:
    from cuber.core.boundaries import Boundaries
    from cuber.core.metric import Metric
    from cuber.errors import CuberError, CuberWarning
    from cuber.methods import AGEM, CUBER, ER, EWC, GPM, HAT, OWM, TRGP, FineTune, LoRA, Method, Multitask, SoftCUBER
    from cuber.networks import MultiHead
    from cuber.streams import Stream, Task
    from cuber.training import Result, learn

__all__ = [
    "AGEM",
    "CUBER",
    "ER",
    "EWC",
    "GPM",
    "HAT",
    "OWM",
    "TRGP",
    "Boundaries",
    "CuberError",
    "CuberWarning",
    "FineTune",
    "LoRA",
    "Method",
    "Metric",
    "MultiHead",
    "Multitask",
    "Result",
    "SoftCUBER",
    "Stream",
    "Task",
    "__version__",
    "learn",
]

# Imported when first asked for: torch takes two seconds, and `cuber --help` does without it.
_ROOMS = {
    "cuber.core.boundaries": ("Boundaries",),
    "cuber.core.metric": ("Metric",),
    "cuber.errors": ("CuberError", "CuberWarning"),
    "cuber.methods": (
        "CUBER",
        "TRGP",
        "GPM",
        "OWM",
        "HAT",
        "EWC",
        "AGEM",
        "ER",
        "FineTune",
        "Multitask",
        "SoftCUBER",
        "LoRA",
        "Method",
    ),
    "cuber.networks": ("MultiHead",),
    "cuber.streams": ("Stream", "Task"),
    "cuber.training": ("Result", "learn"),
}


def __getattr__(name: str) -> Any:
    for room, names in _ROOMS.items():
        if name in names:
            value = getattr(import_module(room), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'cuber' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
