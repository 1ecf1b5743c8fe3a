"""Continual learning methods, one file each.

A method is a dataclass that inherits from :class:`Method`, with hyper-parameters made by :func:`setting`. The command
line finds methods by name: those of this package in ``METHODS``, those of other packages by their entry points in the
group ``cuber.methods``. ``docs/adding-a-method.md`` shows how to write one.
"""

from typing import Any

from cuber.core.learner import Method
from cuber.core.plugins import Plugins
from cuber.core.settings import setting
from cuber.methods.agem import AGEM
from cuber.methods.cuber import CUBER
from cuber.methods.er import ER
from cuber.methods.ewc import EWC
from cuber.methods.finetune import FineTune
from cuber.methods.gpm import GPM
from cuber.methods.hat import HAT
from cuber.methods.lora import LoRA
from cuber.methods.multitask import Multitask
from cuber.methods.owm import OWM
from cuber.methods.soft_cuber import SoftCUBER
from cuber.methods.trgp import TRGP

METHODS: dict[str, type[Method]] = {
    method.__name__.lower(): method for method in (CUBER, TRGP, GPM, OWM, HAT, EWC, AGEM, ER, FineTune, Multitask)
} | {"soft-cuber": SoftCUBER}
"""The methods of this package by name. LoRA is for models of one's own, not for the networks of the benchmarks."""


def _check(name: str, loaded: Any) -> str | None:
    is_method = isinstance(loaded, type) and issubclass(loaded, Method)
    return None if is_method else "is not a subclass of cuber.Method"


OUTSIDE = Plugins("method", METHODS, _check)
"""The methods of other packages."""


def find_method(name: str) -> type[Method]:
    """Return the method of that name, of this package or another.

    Args:
        name: As in ``cuber run --method``.

    Raises:
        CuberError: no package has a method of that name.

    >>> find_method("soft-cuber").__name__
    'SoftCUBER'
    """
    method: type[Method] = METHODS[name] if name in METHODS else OUTSIDE.load(name)
    return method


def method_name(method: type[Method]) -> str:
    """Return the name of a method in results and on the command line.

    Args:
        method: A class; one of another package has its own name in lower case.

    >>> method_name(SoftCUBER), method_name(GPM)
    ('soft-cuber', 'gpm')
    """
    return next((name for name, known in METHODS.items() if known is method), method.__name__.lower())


def all_methods() -> dict[str, type[Method]]:
    """Return all methods by name, with a warning for each of another package that cannot be loaded.

    >>> all_methods()["gpm"].__name__
    'GPM'
    """
    return {**METHODS, **OUTSIDE.load_all()}


__all__ = [
    "AGEM",
    "CUBER",
    "ER",
    "EWC",
    "GPM",
    "HAT",
    "METHODS",
    "OWM",
    "TRGP",
    "FineTune",
    "LoRA",
    "Method",
    "Multitask",
    "SoftCUBER",
    "all_methods",
    "find_method",
    "method_name",
    "setting",
]
