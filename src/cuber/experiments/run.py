"""Running one experiment: a function of its description and of the directory that it is kept in."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cuber.experiments.config import Experiment
from cuber.training import Conditions, Progress, Result, RunDirectory, derive, learn, seeded


def run(
    experiment: Experiment,
    directory: RunDirectory | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    theory: bool = False,
) -> Result:
    """Build the stream, the network and the method, and learn; the seed decides all three.

    With a directory, a run that was stopped goes on; one that is finished is only read. ``theory`` records how far the
    theorems' conditions are met, and changes nothing else.
    """
    stream = experiment.stream()
    with seeded(derive(experiment.seed, "network")):
        model = experiment.preset.network(stream)
    learner = experiment.method_class(model, **experiment.method_settings())
    with limited(experiment.threads or experiment.preset.threads):
        return learn(
            learner,
            stream,
            seed=experiment.seed,
            progress=progress,
            directory=directory,
            about=experiment.about(),
            observer=Conditions(learner) if theory else None,
            **dataclasses.asdict(experiment.training()),
        )


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """While open, torch computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
