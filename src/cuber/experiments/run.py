"""Run one experiment."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cuber.experiments.config import Experiment
from cuber.training import Progress, Result, RunDirectory, derive, learn, seeded


def run(
    experiment: Experiment,
    directory: RunDirectory | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    theory: bool = False,
) -> Result:
    """Build the stream, the network and the method of an experiment, and learn; the seed decides all three.

    Args:
        directory: Where to keep the run; a run that was stopped is resumed, a finished one is only read.
        theory: Also record how far the conditions of the theorems are met.
    """
    stream = experiment.stream()
    with seeded(derive(experiment.seed, "network")):
        model = experiment.preset.network(stream)
    learner = experiment.method_class(model, **experiment.method_settings())
    observer = None
    if theory:
        from cuber.training.theory_recorder import TheoryRecorder  # the only module that needs cuber.theory

        observer = TheoryRecorder(learner)
    with limited(experiment.threads or experiment.preset.threads):
        return learn(
            learner,
            stream,
            seed=experiment.seed,
            progress=progress,
            directory=directory,
            about=experiment.about(),
            observer=observer,
            **dataclasses.asdict(experiment.training()),
        )


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Limit torch to a number of threads; None: no change."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
