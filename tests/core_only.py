"""Learn with nothing but the dependencies of ``pip install cuber-learn``: started by test_package.py."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import torch
from torch import nn

import cuber
from cuber.methods import METHODS


def main(directory: Path) -> None:
    """Learn two tasks with every method, keep a run, save and load a state, and export a model."""
    torch.manual_seed(0)
    x, y = torch.randn(24, 5), torch.arange(24) % 2
    stream = cuber.Stream("two", [cuber.Task(name, (x, y), (x, y), classes=2) for name in ("first", "second")])
    training = {"epochs": 1, "lr": 0.1, "batch_size": 8}
    for name, method in METHODS.items():
        model = cuber.MultiHead(nn.Sequential(nn.Linear(5, 6), nn.ReLU()), 6, [2, 2])
        result = cuber.learn(method(model), stream, **training)
        assert len(result.accuracy[-1]) == 2, name
    for _ in range(2):  # the second time, the run is only read
        learner = cuber.CUBER(cuber.MultiHead(nn.Sequential(nn.Linear(5, 6), nn.ReLU()), 6, [2, 2]))
        cuber.learn(learner, stream, directory=directory, **training)
    learner = cuber.CUBER(cuber.MultiHead(nn.Sequential(nn.Linear(5, 6), nn.ReLU()), 6, [2, 2]))
    cuber.learn(learner, stream, **training)
    torch.save(learner.state_dict(), kept := io.BytesIO())
    kept.seek(0)
    loaded = cuber.CUBER(cuber.MultiHead(nn.Sequential(nn.Linear(5, 6), nn.ReLU()), 6, [2, 2]))
    loaded.load_state_dict(torch.load(kept))
    assert loaded.tasks == 2
    assert learner.export(1)(x).shape == (24, 2)
    for feature in (lambda: cuber.streams.split_digits(0), lambda: cuber.LoRA(nn.Linear(2, 2))):
        try:
            feature()
        except cuber.CuberError as error:
            print(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
