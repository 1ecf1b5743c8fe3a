"""One file per method, each to be read like its paper's algorithm.

A method is a dataclass below :class:`Method`: its hyper-parameters are fields made with :func:`setting`, its
algorithm is what it does at the moments of training that it overrides. Enter it in ``METHODS`` and the command line
knows it.
"""

from cuber.methods.cuber import CUBER
from cuber.methods.finetune import FineTune
from cuber.methods.gpm import GPM
from cuber.methods.hat import HAT
from cuber.methods.method import Method
from cuber.methods.settings import setting
from cuber.methods.trgp import TRGP

METHODS: dict[str, type[Method]] = {"cuber": CUBER, "trgp": TRGP, "gpm": GPM, "hat": HAT, "finetune": FineTune}

__all__ = ["CUBER", "GPM", "HAT", "METHODS", "TRGP", "FineTune", "Method", "setting"]
