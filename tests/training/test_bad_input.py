"""What ``cuber.learn`` says before it trains, and when training goes wrong."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import cuber
from cuber.networks import MLP
from tests.training import small


def learn(learner, stream, **settings):
    return cuber.learn(learner, stream, **{**small.FAST, **settings})


def one_task(x, y, classes=None):
    return cuber.Stream("s", [cuber.Task("a", (x, y), (x, y), classes=classes)])


X, Y = small.blobs(0, 20)


@pytest.mark.parametrize(
    ("model", "stream", "sentence"),
    [
        (lambda: small.model(2), small.stream(3), "the model has 2 heads, but stream 'blobs' has 3 tasks"),
        (lambda: MLP(8, 4, 3), small.stream(2), "has its own head, but the model has one for all"),
        (lambda: MLP(8, 4, 2), small.stream(2, shared_head=True), r"task 0 \('blobs 0'\) has 3 classes, but .* only 2"),
        (
            lambda: cuber.MultiHead(MLP(8, 4, last_relu=True), 4, [3, 2]),
            small.stream(2),
            r"task 1 \('blobs 1'\) has 3 classes, but the model has only 2 outputs",
        ),
        (lambda: MLP(7, 4, 3), one_task(X, Y), r"task 0 \('a'\): the model cannot take inputs of shape \(8,\)"),
        (lambda: MLP(8, 4, 3), one_task(X.double(), Y), "the model cannot take inputs of shape"),
        (
            lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Linear(8, 3)),
            one_task(X, Y),
            r"must have shape \(2, classes\), not shape \(2, 1, 3\)",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_the_first_step(model, stream, sentence):
    network = model()
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(cuber.CuberError, match=sentence):
        learn(cuber.CUBER(network), stream)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_the_selected_head_is_left_as_it_was():
    network = small.model()
    network.select_task(2)
    with pytest.raises(cuber.CuberError, match="3 heads"):
        learn(cuber.CUBER(network), small.stream(4))
    assert network.task == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epochs": 0}, "epochs must be"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": 2**64}, "seed must be a whole number from 0"),
        ({"optimizer": torch.optim.LBFGS}, "cannot train with LBFGS"),
        ({"optimizer": lambda parameters, lr: "SGD"}, "wrap takes a torch optimizer, not a str"),
        ({"loss_fn": lambda output, target: output}, "the loss must be a tensor with one value"),
    ],
)
def test_settings_that_make_no_sense(settings, sentence):
    with pytest.raises(cuber.CuberError, match=sentence):
        learn(cuber.CUBER(small.model(1)), small.stream(1), **settings)


def test_what_is_no_learner_or_no_stream():
    with pytest.raises(cuber.CuberError, match=r"give cuber\.CUBER"):
        learn(small.model(), small.stream())
    with pytest.raises(cuber.CuberError, match=r"takes a cuber.Stream, not a list"):
        learn(cuber.CUBER(small.model()), [small.task(0)])
    with pytest.raises(cuber.CuberError, match="your own training loop"):
        learn(cuber.CUBER(small.model(), forward=lambda model, batch: model(batch[0]).sum()), small.stream())


def test_a_learner_learns_one_stream():
    learner = cuber.CUBER(small.model(1))
    learn(learner, small.stream(1))
    with pytest.raises(cuber.CuberError, match="has learned a task already"):
        learn(learner, small.stream(1))


def test_an_infinite_loss_is_said_with_task_epoch_and_step():
    with pytest.raises(cuber.CuberError, match=r"task 0 \('blobs 0'\), epoch 1, step [23]: the loss is (nan|inf)"):
        learn(cuber.FineTune(small.model(1)), small.stream(1), lr=1e30)


@pytest.mark.parametrize("method", [cuber.FineTune, cuber.CUBER])
@pytest.mark.parametrize("validation", [False, True])
def test_so_is_one_that_only_the_last_step_of_an_epoch_has_caused(method, validation):
    stream = small.stream(1, validation=validation)
    with pytest.raises(cuber.CuberError, match=r"task 0 \('blobs 0'\), epoch 1, step 1: the loss is (nan|inf)"):
        learn(method(small.model(1)), stream, lr=1e30, batch_size=40)


def test_what_a_method_says_at_the_end_of_an_epoch_is_said_with_its_place():
    class Choosy(cuber.FineTune):
        def end_epoch(self):
            super().end_epoch()
            if self.epoch == 2:
                raise cuber.CuberError("not like this")

    with pytest.raises(cuber.CuberError, match=r"task 0 \('blobs 0'\), epoch 2, step 10: not like this"):
        learn(Choosy(small.model(1)), small.stream(1))


@pytest.mark.parametrize("wrong_at", [(1, 1), (1, 5), (2, 3), (3, 102), (2, 250)])
def test_the_step_is_the_right_one(wrong_at):
    epoch, step = wrong_at
    x, y = small.blobs(0, 250)
    calls = {"count": 0}

    def loss_fn(output, target):
        # Training passes are the ones that need a gradient; the rest is the method's looking and the evaluation's.
        if output.requires_grad:
            calls["count"] += 1
            if calls["count"] == (epoch - 1) * 250 + step:
                return functional.cross_entropy(output, target) * float("nan")
        return functional.cross_entropy(output, target)

    stream = cuber.Stream("s", [cuber.Task("a", (x, y), (x, y))])
    with pytest.raises(cuber.CuberError, match=rf"task 0 \('a'\), epoch {epoch}, step {step}: the loss is nan"):
        learn(cuber.FineTune(small.model(1)), stream, batch_size=1, loss_fn=loss_fn)


def test_labels_of_a_dataset_out_of_range():
    class Wrong(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return X[index], 3

    stream = cuber.Stream("s", [cuber.Task("a", Wrong(), (X, Y), classes=3)])
    with pytest.raises(cuber.CuberError, match="task 'a', training split: label 3 is not one of the 3 classes"):
        learn(cuber.CUBER(small.model(1)), stream)
