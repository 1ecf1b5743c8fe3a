"""Multitask: every sample of a mixed batch is learned with the head of its own task, and all tasks at once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cuber import CuberError, FineTune, MultiHead, Multitask
from cuber.networks import MLP
from tests.loops import OPTIMIZERS, logits, loss_fn, same_bits
from tests.methods.test_resume import through_a_file
from tests.oracles import multitask as oracle

Mixed = list[tuple[Tensor, Tensor, Tensor]]

CLASSES = [3, 2, 4]
"""Heads of different widths: none may borrow from another."""
LR = 0.3


def with_heads() -> nn.Module:
    return MultiHead(MLP(6, 8, 7, bias=True, last_relu=True), 7, CLASSES)


def shared() -> nn.Module:
    return MLP(6, 8, 7, 2, bias=True)


def convolutional() -> nn.Module:
    backbone = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    return MultiHead(backbone, 5, CLASSES)


def with_norm() -> nn.Module:
    return MultiHead(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)), 8, CLASSES)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], oracle.Answer, tuple[int, ...]]] = {
    "perceptron with heads": (with_heads, oracle.perceptron_with_heads, (6,)),
    "perceptron with one head": (shared, oracle.perceptron, (6,)),
    "convolution with heads": (convolutional, oracle.convolution_with_heads, (2, 4, 4)),
}


def built(build: Callable[[], nn.Module], seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    return build().to(dtype)


def mixed(
    *, seed: int = 0, tasks: int = 3, batches: int = 20, size: int = 8, shape: tuple[int, ...] = (6,), classes: int = 2
) -> Mixed:
    """Random samples of random tasks, of which each batch has several."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(tasks, (batches, size), generator=generator)
    numbers[0, :tasks] = torch.arange(tasks)
    x = torch.randn(batches, size, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(classes, (batches, size), generator=generator)
    return list(zip(x, y, numbers, strict=True))


def steps(learner: Any, optimizer: torch.optim.Optimizer, loader: Mixed) -> list[float]:
    losses = []
    for batch in loader:

        def closure(batch: Any = batch) -> Tensor:
            optimizer.zero_grad()
            loss = learner.loss(batch)
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure).detach()))
    learner.end_epoch()
    return losses


def learned(build: Callable[[], nn.Module] = with_heads, loader: Mixed | None = None, **settings: Any) -> Multitask:
    learner = Multitask(built(build), **settings)
    loader = loader or mixed()
    learner.begin_task(loader, loss_fn)
    steps(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=LR)), loader)
    learner.end_task(loader)
    return learner


# The oracle


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NETWORKS)
def test_twenty_steps_are_those_of_the_oracle(name: str, seed: int) -> None:
    build, answer, shape = NETWORKS[name]
    model = built(build, seed)
    loader = mixed(seed=seed, shape=shape)
    assert all(len(tasks.unique()) > 1 for _, _, tasks in loader)
    assert any(len(tasks.unique()) < 3 for _, _, tasks in loader), "no head is ever left out of a batch"
    slow = oracle.SlowMultitask(dict(model.named_parameters()), answer, LR)
    learner = Multitask(model)
    learner.begin_task(loader, loss_fn)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=LR))
    for x, y, tasks in loader:
        optimizer.zero_grad()
        loss = learner.loss((x, y, tasks))
        loss.backward()
        expected, gradients = slow.step(x, y, tasks)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)
        for parameter_name, parameter in model.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            assert torch.allclose(gradient, gradients[parameter_name], rtol=1e-9, atol=1e-13), parameter_name
        optimizer.step()
    learner.end_task(loader)
    for parameter_name, parameter in model.named_parameters():
        assert torch.allclose(parameter, slow.weights[parameter_name], rtol=1e-10, atol=1e-13), parameter_name
    x = loader[0][0]
    for task in range(3):
        expected_answers = torch.stack([answer(slow.weights, sample, task) for sample in x])
        assert torch.allclose(logits(learner, task, x), expected_answers, rtol=1e-10, atol=1e-12)


# One task is FineTune's


@pytest.mark.parametrize(
    ("build", "statistics", "optimizer"),
    [(with_norm, "task", name) for name in OPTIMIZERS]
    + [(build, "batch", "AdamW") for build in (with_heads, shared, with_norm)],
)
def test_with_one_task_it_is_finetune_to_the_bit(build: Any, statistics: str, optimizer: str) -> None:
    make = OPTIMIZERS[optimizer]
    loader = mixed(tasks=1, batches=6)
    pairs = [(x, y) for x, y, _ in loader]
    learners = [Multitask(built(build), norm_statistics=statistics), FineTune(built(build), norm_statistics=statistics)]
    for learner, data in zip(learners, (loader, pairs), strict=True):
        torch.manual_seed(1)
        learner.begin_task(data, loss_fn)
        steps(learner, learner.wrap(make(learner.parameters())), data)
        learner.end_task(data)
    assert same_bits(learners[0].model, learners[1].model)
    assert torch.equal(logits(learners[0], 0, loader[0][0]), logits(learners[1], 0, loader[0][0]))
    assert learners[0].memory_bytes() == learners[1].memory_bytes()


# All tasks at once


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_heads_of_all_tasks_learn_and_those_of_no_task_do_not(make: Any) -> None:
    model = built(with_heads)
    before = [copy.deepcopy(head.state_dict()) for head in model.heads]  # type: ignore[union-attr]
    learner, loader = Multitask(model), mixed(tasks=2)
    learner.begin_task(loader, loss_fn)
    everything = learner.wrap(make(model.parameters()))
    first = steps(learner, everything, loader)
    assert sum(steps(learner, everything, loader)) < sum(first)
    learner.end_task(loader)
    moved = [not torch.equal(head.weight, old["weight"]) for head, old in zip(model.heads, before, strict=True)]  # type: ignore[union-attr, arg-type]
    assert moved == [True, True, False]
    assert learner.tasks == 2
    with pytest.raises(CuberError, match=r"as_task\(2\): that task has not been learned \(tasks 0 to 1 have\)"):
        logits(learner, 2, loader[0][0])


def test_every_task_can_be_asked_in_the_middle_of_learning_and_nothing_is_changed() -> None:
    loader, learners = mixed(), [Multitask(built(with_norm)) for _ in range(2)]
    for learner, curious in zip(learners, (True, False), strict=True):
        learner.begin_task(loader, loss_fn)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=LR))
        for epoch in range(2):
            torch.manual_seed(epoch)
            steps(learner, optimizer, loader)
            if curious:
                answers = [logits(learner, task, loader[0][0]) for task in (0, 1, 2, None)]
                assert [answer.shape[1] for answer in answers[:3]] == CLASSES
                assert repr(learner).endswith("learning task 0\n  tasks 0 to 2, all at once")
        learner.end_task(loader)
    assert same_bits(learners[0].model, learners[1].model)


def test_one_set_of_normalization_statistics_serves_all_tasks() -> None:
    learner = learned(with_norm)
    norm: Any = learner.model.backbone[1]  # type: ignore[union-attr, index]
    kept = norm.running_mean.clone()
    learner.model.train()
    learner.model(100 + loader_inputs())
    assert not torch.equal(norm.running_mean, kept)
    for task in range(3):
        with learner.as_task(task):
            assert torch.equal(norm.running_mean, kept)
    assert learner.memory_bytes()["statistics"] == 2 * 8 * 8 + 8  # mean, variance and count, once


def loader_inputs() -> Tensor:
    return mixed()[0][0]


def test_statistics_of_the_mixture_are_those_learned_with() -> None:
    learner = Multitask(built(with_norm))
    loader = mixed(batches=1)
    learner.begin_task(loader, loss_fn)
    norm: Any = learner.model.backbone[1]  # type: ignore[union-attr, index]
    linear: Any = learner.model.backbone[0]  # type: ignore[union-attr, index]
    mean = linear(loader[0][0]).mean(0).detach()
    learner.loss(loader[0])
    assert torch.allclose(norm.running_mean, 0.1 * mean)


def test_the_memory_is_that_of_the_heads_that_were_learned() -> None:
    learner = learned(loader=mixed(tasks=2))
    assert learner.memory_bytes() == {"heads": (7 + 1) * (3 + 2) * 8, "statistics": 0}


def test_a_dataloader_is_read_once_before_the_first_step() -> None:
    """As FineTune does: a loader that shuffles by the global seed yields the same order with both."""
    x, y, tasks = (torch.cat(parts) for parts in zip(*mixed(), strict=True))
    states = []
    for learner, data in (
        (Multitask(built(with_heads)), TensorDataset(x, y, tasks)),
        (FineTune(built(shared)), TensorDataset(x, y)),
    ):
        torch.manual_seed(3)
        learner.begin_task(DataLoader(data, batch_size=8, shuffle=True), loss_fn)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_the_model_is_given_back() -> None:
    learner = learned(loader=mixed(tasks=2))
    twin = copy.deepcopy(learner.model)
    learner.detach()
    for model in (learner.model, twin):
        again = FineTune(model)
        again.begin_task([(loader_inputs(), torch.zeros(8, dtype=torch.long))], loss_fn)
        assert [name for name, _ in again.named_parameters() if name.startswith("heads")] == [
            "heads.0.weight",
            "heads.0.bias",
        ]
        again.detach()
        assert all(parameter.requires_grad for parameter in model.parameters())


# Going on from a file


@pytest.mark.parametrize("build", [with_heads, with_norm])
def test_a_run_goes_on_from_a_file_with_the_same_bits(build: Any) -> None:
    def adam(learner: Multitask) -> torch.optim.Optimizer:
        return learner.wrap(torch.optim.Adam(learner.parameters(), lr=0.01))

    loader = mixed(tasks=2)
    learner = Multitask(built(build))
    learner.begin_task(loader, loss_fn)
    optimizer = adam(learner)
    steps(learner, optimizer, loader)

    twin = Multitask(built(build, seed=9))
    twin.model.load_state_dict(through_a_file(learner.model.state_dict()))
    twin.load_state_dict(through_a_file(learner.state_dict()))
    with pytest.raises(CuberError, match=r"call resume_task\(loss_fn\) first"):
        twin.loss(loader[0])
    twin.resume_task(loss_fn)
    twins_optimizer = adam(twin)
    twins_optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    assert twin.epoch == 1
    assert [name for name, _ in twin.named_parameters()] == [name for name, _ in learner.named_parameters()]
    assert torch.equal(logits(twin, 1, loader[0][0]), logits(learner, 1, loader[0][0]))
    for each, its_optimizer in ((learner, optimizer), (twin, twins_optimizer)):
        torch.manual_seed(5)
        steps(each, its_optimizer, loader)
        each.end_task(loader)
    assert same_bits(learner.model, twin.model)

    last = Multitask(built(build, seed=9))
    last.model.load_state_dict(through_a_file(learner.model.state_dict()))
    last.load_state_dict(through_a_file(learner.state_dict()))
    assert (last.tasks, last.task) == (2, None)
    assert last.memory_bytes() == learner.memory_bytes()
    for task in range(2):
        assert torch.equal(logits(last, task, loader[0][0]), logits(learner, task, loader[0][0]))
    with pytest.raises(CuberError, match="has learned its 2 tasks"):
        last.begin_task(loader, loss_fn)


# Mistakes

X, Y, TASKS = mixed()[0]
TRIPLE = r"batches of \(input, target, task\)"


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ((X, Y), TRIPLE + ".* not 2 things"),
        ({"x": X, "y": Y, "task": TASKS}, TRIPLE + ".* not a dict"),
        (X, TRIPLE + ".* not a Tensor"),
        ((X, Y, 0), TRIPLE + " where task is a whole number for each sample"),
        ((X, Y, torch.tensor(0)), TRIPLE + " where task is a whole number"),
        ((X, Y, TASKS[:5]), TRIPLE + " where task is a whole number"),
        ((X, Y, TASKS.double()), TRIPLE + " where task is a whole number"),
        ((X, Y, TASKS > 0), TRIPLE + " where task is a whole number"),
        ((X, Y, TASKS - 1), "numbered from 0 without gaps, but of the loader's samples one is of task -1"),
        ((X, Y, TASKS * 2), "there is none of task 1"),
        ((X, Y, TASKS + 1), "there is none of task 0"),
        ((X, Y, torch.arange(8) % 4), "samples of task 3, but the model has only 3 heads: name all tasks"),
        ((X, Y + 7, TASKS), "task 0: the model and the loss cannot take the loader's first batch"),
    ],
)
def test_batches_that_it_cannot_learn_are_refused_before_the_first_step(batch: Any, sentence: str) -> None:
    learner = Multitask(built(with_heads))
    with pytest.raises(CuberError, match=sentence):
        learner.begin_task([batch], loss_fn)
    assert all(parameter.requires_grad for parameter in learner.model.parameters())
    learner.begin_task([(X, Y, TASKS)], loss_fn)  # nothing is lost
    assert learner.task == 0


def test_every_batch_is_checked_not_only_the_first() -> None:
    with pytest.raises(CuberError, match="not 2 things"):
        Multitask(built(with_heads)).begin_task([*mixed(batches=40), (X, Y)], loss_fn)


def test_what_it_cannot_do_is_said() -> None:
    loader = mixed()
    learner = learned()
    with pytest.raises(CuberError, match="has learned its 3 tasks, all at once: make a new learner"):
        learner.begin_task(loader, loss_fn)
    with pytest.raises(CuberError, match="a sample is of task 3, but the tasks learned are 0 to 2"):
        learner.loss((X, Y, TASKS + 1))
    with pytest.raises(CuberError, match=r"which forward= does not tell"):
        Multitask(built(with_heads), forward=lambda model, batch: model(batch[0]).sum()).begin_task(loader)
    hidden = Multitask(nn.Sequential(built(with_heads), nn.LogSoftmax(1)))
    with pytest.raises(CuberError, match="needs the heads at the very end"):
        hidden.begin_task(loader, loss_fn)
    with pytest.raises(CuberError, match="can be read only once"):
        Multitask(built(with_heads)).begin_task(iter(loader), loss_fn)
    with pytest.raises(CuberError, match="yields no batch"):
        Multitask(built(with_heads)).begin_task([], loss_fn)
    with pytest.raises(CuberError, match="norm_statistics must be one of task, batch"):
        Multitask(built(with_heads), norm_statistics="all")
