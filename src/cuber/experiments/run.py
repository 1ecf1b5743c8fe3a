"""Running one experiment: a function of its description."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cuber.experiments.config import Experiment
from cuber.training import Progress, Result, derive, learn, seeded


def run(experiment: Experiment, progress: Progress | None = None) -> Result:
    """Build the stream, the network and the method, and learn; the seed decides all three."""
    stream = experiment.stream()
    with seeded(derive(experiment.seed, "network")):
        model = experiment.preset.network(stream)
    learner = experiment.method_class(model, **experiment.method_settings())
    training = dataclasses.asdict(experiment.training())
    with limited(experiment.threads or experiment.preset.threads):
        result = learn(learner, stream, seed=experiment.seed, progress=progress, **training)
    result.method = experiment.method  # another package may have named its class otherwise
    result.notes += experiment.notes()
    return result


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """While open, torch computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
