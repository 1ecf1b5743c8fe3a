"""Continual learning methods, one file each.

A method is a dataclass that inherits from :class:`Method`. Its hyper-parameters are fields made with :func:`setting`,
it overrides the points of the training loop that it needs (``on_task_begin``, ``before_step``, ``on_task_end``, ...),
and it declares what it must remember::

    @dataclass(eq=False, repr=False)
    class Anchor(Method):
        '''Pull weights back to where the last task left them.'''

        remembered = {"anchors": dict[str, Tensor]}
        strength: float = setting(0.1, "how hard they are pulled", low=0)

The command line finds methods by name: those of this package in ``METHODS``, those of other packages by entry points
in the group ``cuber.methods``::

    [project.entry-points."cuber.methods"]
    anchor = "anchor:Anchor"

``docs/adding-a-method.md`` has the whole example, and what can be overridden with arguments and return values.
"""

from cuber.core.learner import Method
from cuber.core.settings import setting
from cuber.methods import plugins
from cuber.methods.agem import AGEM
from cuber.methods.cuber import CUBER
from cuber.methods.er import ER
from cuber.methods.ewc import EWC
from cuber.methods.finetune import FineTune
from cuber.methods.gpm import GPM
from cuber.methods.hat import HAT
from cuber.methods.multitask import Multitask
from cuber.methods.owm import OWM
from cuber.methods.trgp import TRGP

METHODS: dict[str, type[Method]] = {
    "cuber": CUBER,
    "trgp": TRGP,
    "gpm": GPM,
    "owm": OWM,
    "hat": HAT,
    "ewc": EWC,
    "agem": AGEM,
    "er": ER,
    "finetune": FineTune,
    "multitask": Multitask,
}
"""The methods of this package."""


def find_method(name: str) -> type[Method]:
    """Return the method of that name, of this package or another.

    Raises:
        CuberError: no package has a method of that name.
    """
    return METHODS[name] if name in METHODS else plugins.load(name, METHODS)


def all_methods() -> dict[str, type[Method]]:
    """Return all methods by name, with a warning for each of another package that cannot be loaded."""
    return {**METHODS, **plugins.load_all(METHODS)}


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
    "Method",
    "Multitask",
    "all_methods",
    "find_method",
    "setting",
]
