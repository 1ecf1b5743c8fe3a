"""The loop: ``learn`` a stream, and what it is made of."""

from cuber.runs.directory import RunDirectory
from cuber.runs.interrupts import Stopped
from cuber.runs.result import Epoch, Result, UnwrittenResultError
from cuber.training.config import TrainingConfig
from cuber.training.evaluate import Score, evaluate
from cuber.training.learning import learn
from cuber.training.progress import Progress, ProgressEvent
from cuber.training.randomness import check_seed, derive, seeded
from cuber.training.schedule import Schedule
from cuber.training.theory_recorder import Conditions, Observer

__all__ = [
    "Conditions",
    "Epoch",
    "Observer",
    "Progress",
    "ProgressEvent",
    "Result",
    "RunDirectory",
    "Schedule",
    "Score",
    "Stopped",
    "TrainingConfig",
    "UnwrittenResultError",
    "check_seed",
    "derive",
    "evaluate",
    "learn",
    "seeded",
]
