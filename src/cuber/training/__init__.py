"""The loop: ``learn`` a stream, and what it is made of."""

from cuber.training.conditions import Conditions, Observer
from cuber.training.directory import RunDirectory
from cuber.training.evaluate import Score, evaluate
from cuber.training.interrupts import Stopped
from cuber.training.learning import learn
from cuber.training.progress import Moment, Progress
from cuber.training.randomness import check_seed, derive, seeded
from cuber.training.result import Epoch, Result, UnwrittenResultError
from cuber.training.schedule import Schedule
from cuber.training.settings import Training

__all__ = [
    "Conditions",
    "Epoch",
    "Moment",
    "Observer",
    "Progress",
    "Result",
    "RunDirectory",
    "Schedule",
    "Score",
    "Stopped",
    "Training",
    "UnwrittenResultError",
    "check_seed",
    "derive",
    "evaluate",
    "learn",
    "seeded",
]
