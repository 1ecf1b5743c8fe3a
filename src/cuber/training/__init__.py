"""The training loop: :func:`learn` runs a method through a stream of tasks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuber.core.randomness import check_seed, derive
    from cuber.runs.directory import RunDirectory, Stopped
    from cuber.runs.result import Epoch, Result, UnwrittenResultError
    from cuber.training.config import TrainingConfig
    from cuber.training.evaluation import evaluate
    from cuber.training.learning import learn
    from cuber.training.progress import Progress, ProgressEvent
    from cuber.training.theory_recorder import TheoryRecorder

__all__ = [
    "Epoch",
    "Progress",
    "ProgressEvent",
    "Result",
    "RunDirectory",
    "Stopped",
    "TheoryRecorder",
    "TrainingConfig",
    "UnwrittenResultError",
    "check_seed",
    "derive",
    "evaluate",
    "learn",
]

# Imported on first use: cuber.training.config must not import torch, and only TheoryRecorder needs cuber.theory.
_MODULES = {
    "cuber.runs.directory": ("RunDirectory", "Stopped"),
    "cuber.runs.result": ("Epoch", "Result", "UnwrittenResultError"),
    "cuber.training.progress": ("Progress", "ProgressEvent"),
    "cuber.training.config": ("TrainingConfig",),
    "cuber.training.evaluation": ("evaluate",),
    "cuber.training.learning": ("learn",),
    "cuber.core.randomness": ("check_seed", "derive"),
    "cuber.training.theory_recorder": ("TheoryRecorder",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'cuber.training' has no attribute '{name}'")
