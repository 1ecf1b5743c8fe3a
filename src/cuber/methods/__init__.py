"""One file per method, each to be read like its paper's algorithm.

A method is a dataclass below :class:`Method`: its hyper-parameters are fields made with :func:`setting`, its algorithm
is what it does at the moments of training that it overrides, and what it must remember goes into ``_state``,
``_restore`` and ``memory_bytes``. Nothing is required of it but a sentence::

    class Nothing(Method):
        '''Plain training.'''

The command line knows a method by its name: inside this package from an entry in ``METHODS``, in any other package
from an entry point in the group ``cuber.methods``, which is looked at when a name is asked for that is not in
``METHODS``, and by ``cuber list``::

    [project.entry-points."cuber.methods"]
    nothing = "nothing:Nothing"

``docs/adding-a-method.md`` has the moments in their order, and an example to copy.
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
"""Those of this package."""


def find_method(name: str) -> type[Method]:
    """The method of that name, of this package or of one that offers it; a sentence where there is none."""
    return METHODS[name] if name in METHODS else plugins.load(name, METHODS)


def all_methods() -> dict[str, type[Method]]:
    """Every method by name; a warning for each that a package offers in vain."""
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
