"""Try everything on the simulated device, in a process of its own: prints one line of JSON for each trial.

Run by ``test_devices.py``, as ``python -m tests.on_device``.
"""

from __future__ import annotations

import json
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import cuber
from cuber.core.state import declared_state, tensors_in
from cuber.methods import METHODS, Method
from cuber.training import RunDirectory, Stopped, TheoryRecorder
from tests.loops import loss_fn
from tests.models import CASES, Case
from tests.simulated import Remote, accelerator, register
from tests.training import small
from tests.training.test_directory import StopAt

CPU = torch.device("cpu")
SETTINGS: dict[str, dict[str, Any]] = {
    "cuber": {"eps1": 0.0, "eps2": -1.0, "threshold": 0.8},
    "trgp": {"eps1": 0.0, "threshold": 0.8},
    "soft-cuber": {"eps1": 0.0},
}
"""Such that old tasks are reused and improved."""
MODELS = ("mlp", "residual block")
ON_HOST = {"episodic_memory", "generator"}
"""Remembered where it is not computed with; so is the memory of OWM, which must be in float64."""


def learn_tasks(name: str, case: Case, devices: list[torch.device]) -> tuple[Method, Tensor]:
    """Learn three tasks, each on a device of its own; return what the model then answers for each."""
    learner = METHODS[name](case.model().to(devices[0]), **SETTINGS.get(name, {}))
    torch.manual_seed(1)
    loaders: list[Any] = [case.loader(task) for task in range(3)]
    if learner.joint:
        loaders = [[(x, y, torch.full((len(y),), task)) for task in range(3) for x, y in loaders[task]]]
    for device, loader in zip(devices, loaders, strict=False):
        learner.model.to(device)
        learner.begin_task(loader, loss_fn)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.05))
        for batch in loader:
            optimizer.zero_grad()
            learner.loss(batch).backward()
            optimizer.step()
        learner.end_epoch()
        learner.end_task(loader)
    answers = []
    for task in range(3):
        with torch.no_grad(), learner.as_task(task) as model:
            answers.append(model(case.inputs(7, 6).to(learner.device)).cpu())
    return learner, torch.stack(answers)


def same_bits(name: str, model: str, device: torch.device) -> None:
    """All three tasks on the device; what is remembered is there too."""
    _, expected = learn_tasks(name, CASES[model], [CPU] * 3)
    with accelerator():
        learner, answers = learn_tasks(name, CASES[model], [device] * 3)
        assert torch.equal(answers, expected)
        for attribute in declared_state(type(learner), in_task=False):
            if attribute in ON_HOST or (name == "owm" and attribute == "memory"):
                continue
            assert all(isinstance(tensor, Remote) for tensor in tensors_in(getattr(learner, attribute))), attribute


def moved_between_tasks(name: str, device: torch.device) -> None:
    _, expected = learn_tasks(name, CASES["many heads"], [CPU] * 3)
    with accelerator():
        _, answers = learn_tasks(name, CASES["many heads"], [CPU, device, CPU])
        assert torch.equal(answers, expected)


@contextmanager
def without_float64() -> Iterator[None]:
    """As on Apple's GPUs: what needs float64 is computed on the CPU."""

    def has_float64(device: torch.device) -> bool:
        return device.type == "cpu"

    places = "cuber.subspace.precision.has_float64", "cuber.core.device.has_float64"
    with accelerator(float64=False), patch(places[0], has_float64), patch(places[1], has_float64):
        yield


def almost_the_same(name: str, device: torch.device) -> None:
    _, expected = learn_tasks(name, CASES["mlp"], [CPU] * 3)
    with without_float64():
        _, answers = learn_tasks(name, CASES["mlp"], [device] * 3)
        assert torch.allclose(answers, expected, atol=1e-5)


def run_here(device: torch.device, directory: Any = None, *, theory: bool = False) -> cuber.Result:
    learner = cuber.CUBER(small.model_with_norm().to(device), **SETTINGS["cuber"])
    observer = TheoryRecorder(learner) if theory else None
    options = {**small.FAST, "epochs": 2, "patience": 2}
    return cuber.learn(learner, small.stream(), directory=directory, observer=observer, **options)


def trained(device: torch.device) -> None:
    """The training loop, with early stopping, evaluation and the theorems' conditions."""
    expected = run_here(CPU, theory=True)
    with accelerator():
        found = run_here(device, theory=True)
    assert found.machine["device"] == "gpu:0"
    assert (found.accuracy, found.theory, found.regimes) == (expected.accuracy, expected.theory, expected.regimes)
    with without_float64():
        found = run_here(device)
    losses = [[epoch.validation_loss for epochs in result.history for epoch in epochs] for result in (found, expected)]
    assert torch.allclose(*map(torch.tensor, losses), rtol=1e-3)


def resumed_elsewhere(device: torch.device) -> None:
    """A run that is stopped in its second task and goes on on another device has the result of one run."""
    expected = run_here(CPU)
    for first, second in ((CPU, device), (device, CPU)):
        with accelerator(), tempfile.TemporaryDirectory() as folder:
            with suppress(Stopped):
                run_here(first, RunDirectory(folder, loggers=[StopAt(3)]))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", cuber.CuberWarning)
                found = run_here(second, folder)
        assert f"experiment.device was '{first}' and is now '{second}'" in str(caught[0].message)
        assert found.machine["device"] == f"{first}, {second}"
        assert found.accuracy == expected.accuracy


def inferred_elsewhere(name: str, device: torch.device) -> None:
    """A learner that is moved after its last task infers the same tasks, and answers where its model is."""
    case = CASES["many heads"]
    x = torch.cat([case.loader(task)[0][0] for task in range(3)])
    learner, answers = learn_tasks(name, case, [CPU] * 3)
    expected = [*learner.infer_task(x), learner.predict(x).output]
    with accelerator():
        learner.model.to(device)
        with torch.no_grad(), learner.as_task(1) as model:
            assert torch.equal(model(case.inputs(7, 6).to(device)).cpu(), answers[1])
        found = [*learner.infer_task(x), learner.predict(x.to(device)).output]
        assert all(isinstance(tensor, Remote) for tensor in found)
        assert all(map(torch.equal, [tensor.cpu() for tensor in found], expected))
        learner.model.to(CPU)
    with without_float64():
        learner.model.to(device)
        probabilities = learner.infer_task(x).probabilities
        assert torch.allclose(probabilities.cpu().double(), expected[2], atol=1e-5)


def boundaries_elsewhere(device: torch.device) -> None:
    """A stream without boundaries: the same are found on the device, and from a state that was saved there."""
    tasks = [cuber.Task(f"blobs {n}", small.blobs(10 * n, 320), small.blobs(10 * n + 1, 20), classes=3) for n in (0, 1)]
    stream = cuber.Stream("blobs", tasks, shared_head=True)

    def run(device: torch.device) -> tuple[cuber.Result, cuber.Boundaries]:
        learner = cuber.CUBER(small.model(shared_head=True).to(device))
        boundaries = cuber.Boundaries(learner, warm_up=100)
        return cuber.learn(learner, stream, boundaries=boundaries, epochs=1, lr=0.1, batch_size=8), boundaries

    expected, watched = run(CPU)
    with accelerator():
        found, there = run(device)
        saved = there.state_dict()
    assert (found.accuracy, found.boundaries) == (expected.accuracy, expected.boundaries)
    assert found.boundaries is not None
    assert found.boundaries["answers"] == [0, 1]
    here = cuber.Boundaries(cuber.CUBER(small.model(shared_head=True)), warm_up=100)
    here.load_state_dict(saved)
    for step in range(20):
        batch = small.blobs(20 + step, 8)
        assert here.observe(batch) == watched.observe(batch)


class Sloppy(Method):
    """Makes a tensor without saying where."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad += torch.zeros(parameter.shape)


def noticed(device: torch.device) -> None:
    """The simulation refuses what a real device would refuse."""
    refusal = pytest.raises(RuntimeError, match=r"takes tensors of one device, and one .* is on cpu")
    with accelerator(), patch.dict(METHODS, sloppy=Sloppy), refusal:
        learn_tasks("sloppy", CASES["mlp"], [device] * 3)


TRIALS: dict[str, Callable[[torch.device], None]] = {
    **{f"same bits, {name}, {model}": partial(same_bits, name, model) for name in METHODS for model in MODELS},
    **{f"moved, {name}": partial(moved_between_tasks, name) for name in METHODS if not METHODS[name].joint},
    **{f"no float64, {name}": partial(almost_the_same, name) for name in METHODS},
    **{f"inferred elsewhere, {name}": partial(inferred_elsewhere, name) for name in ("gpm", "cuber")},
    "trained": trained,
    "boundaries elsewhere": boundaries_elsewhere,
    "resumed elsewhere": resumed_elsewhere,
    "noticed": noticed,
}

if __name__ == "__main__":
    place = register()
    for trial, check in TRIALS.items():
        failure = None
        try:
            check(place)
        except Exception:
            failure = traceback.format_exc()
        print(json.dumps([trial, failure]), flush=True)
    os._exit(0)  # the threads of backward passes on a device in Python do not end by themselves
