"""Early stopping: by validation loss alone, with the best weights restored, and never a look at the test data."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils.data import Dataset

import cuber
from cuber.training import evaluate
from tests.loops import scalings
from tests.training import small


@pytest.mark.parametrize("method", [cuber.FineTune, cuber.GPM, cuber.TRGP, cuber.CUBER])
def test_the_weights_with_the_best_validation_loss_are_kept(method):
    """Batch norm, dropout and scalings too: the validation loss of what was kept is the best one to the bit."""
    network, stream = small.model_with_norm(), small.stream()
    learner = method(network)
    kept: list[float] = []
    end_task = learner.end_task

    def spying(loader):
        validation = stream[learner.task].validation
        kept.append(evaluate(network, validation, 256, functional.cross_entropy).loss)
        end_task(loader)

    learner.end_task = spying
    settings = {"epochs": 25, "lr": 0.1, "batch_size": 4, "patience": 2, "floor": 0.02}
    result = cuber.learn(learner, stream, **settings)
    ended_early = 0
    for epochs, loss in zip(result.history, kept, strict=True):
        losses = [epoch.validation_loss for epoch in epochs]
        assert loss == min(losses)
        assert [epoch.kept for epoch in epochs] == [
            number == losses.index(min(losses)) for number in range(len(losses))
        ]
        ended_early += losses[-1] != min(losses)
    assert ended_early  # or nothing was restored
    if isinstance(learner, cuber.TRGP):
        assert any(scalings(learner, task) for task in range(learner.tasks))


def test_the_learning_rate_goes_down_and_training_ends():
    """An optimizer that learns nothing: no epoch after the first is better, so patience runs out again and again."""
    stream = small.stream(1)
    factory = lambda parameters, lr: torch.optim.SGD(parameters, lr=lr * 1e-12)  # noqa: E731
    settings = {"epochs": 50, "lr": 1.0, "batch_size": 40, "patience": 2, "factor": 10, "floor": 0.05}
    result = cuber.learn(cuber.FineTune(small.model(1)), stream, optimizer=factory, **settings)
    rates = [epoch.lr * 1e12 for epoch in result.history[0]]
    assert rates == pytest.approx([1, 1, 1, 0.1, 0.1])


def test_without_patience_every_epoch_is_run_and_the_last_kept():
    result = cuber.learn(cuber.FineTune(small.model()), small.stream(), epochs=7, lr=0.3, batch_size=4)
    assert [[epoch.kept for epoch in epochs] for epochs in result.history] == [[False] * 6 + [True]] * 3
    assert all(epoch.lr == 0.3 for epochs in result.history for epoch in epochs)


def test_without_a_validation_part_patience_is_idle_and_says_so():
    stream = small.stream(2, validation=False)
    with pytest.warns(cuber.CuberWarning, match=r"no task of 'blobs' has a validation split.*stream.split"):
        result = cuber.learn(cuber.FineTune(small.model(2)), stream, patience=1, **small.FAST)
    epoch = result.history[0][-1]
    assert epoch.kept
    assert epoch.validation_loss is None
    assert 0 <= epoch.train_accuracy <= 100


class Guarded(Dataset):
    """Test data that notes who was learning when it was looked at."""

    def __init__(self, part, learner, looks):
        self.part, self.learner, self.looks = part, learner, looks

    def __len__(self):
        return len(self.part)

    def __getitem__(self, index):
        if self.learner.task is not None:
            raise AssertionError(f"test data were looked at while task {self.learner.task} was being learnt")
        self.looks.append(self.learner.tasks)
        return self.part.x[index], self.part.y[index]


@pytest.mark.parametrize("patience", [None, 1])
def test_test_data_are_never_looked_at_during_training(patience):
    plain, network = small.stream(), small.model()
    learner = cuber.CUBER(network)
    looks: list[list[int]] = [[], [], []]
    tasks = [
        cuber.Task(task.name, task.train, Guarded(task.test, learner, looks[n]), task.validation, classes=3)
        for n, task in enumerate(plain)
    ]
    cuber.learn(learner, cuber.Stream("guarded", tasks), patience=patience, **small.FAST)
    # Each test part after each task from its own on, once with the task told and once with the inferred one.
    assert [sorted(set(seen)) for seen in looks] == [[1, 2, 3], [2, 3], [3]]
    assert [len(seen) for seen in looks] == [2 * 90, 2 * 60, 2 * 30]


def test_only_validation_data_decide():
    """The same training and validation data with other test data: the same weights."""
    networks = [small.model(), small.model()]
    streams = [
        small.stream(),
        cuber.Stream("other", [cuber.Task(t.name, t.train, small.blobs(99, 30), t.validation) for t in small.stream()]),
    ]
    for network, stream in zip(networks, streams, strict=True):
        cuber.learn(cuber.CUBER(network), stream, epochs=9, lr=0.1, batch_size=4, patience=1, floor=0.02)
    for ours, other in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(ours, other)
