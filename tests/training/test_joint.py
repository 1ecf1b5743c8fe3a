"""``cuber.learn`` with all tasks at once: one lesson, one row, validated on all tasks together."""

from __future__ import annotations

import json
from statistics import mean

import pytest
import torch
from torch.nn import functional

import cuber
from cuber.experiments import Experiment, run
from cuber.networks import MLP
from cuber.streams import JointSplit, ShuffledLoader
from cuber.training import derive, evaluate
from tests.loops import same_bits
from tests.training import small
from tests.training.test_schedule import stopping


def learn(network=None, stream=None, kind=cuber.Multitask, **settings):
    learner = kind(small.model() if network is None else network)
    return cuber.learn(learner, small.stream() if stream is None else stream, **{**small.FAST, **settings})


def test_the_result_has_one_row_with_all_tasks(tmp_path):
    result = learn()
    (row,) = result.accuracy
    assert len(row) == 3
    assert result.acc == pytest.approx(mean(row))
    assert result.acc > 80
    assert (result.bwt, result.forgetting, result.accuracy_bare) == (None, None, None)
    assert [len(result.history), len(result.seconds), len(result.bytes)] == [1, 1, 1]
    assert [task["name"] for task in result.tasks] == ["blobs 0", "blobs 1", "blobs 2"]
    assert repr(result).startswith("Result(multitask on blobs, 3 tasks, seed 0: ACC ")
    saved = json.loads(result.save(tmp_path).read_text())
    assert saved["accuracy"] == result.accuracy
    assert (saved["acc"], saved["bwt"], saved["forgetting"]) == (pytest.approx(result.acc), None, None)


def test_it_is_the_loop_that_one_would_write():
    stream, ours, mine = small.stream(), small.model(), small.model()
    learn(ours, stream, seed=5)
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    part = JointSplit([task.train for task in stream])
    loader = ShuffledLoader(part, 4, torch.Generator().manual_seed(derive(5, "order", 0)))
    for _ in range(6):
        seen = 0
        for x, y, tasks in loader:
            optimizer.zero_grad()
            features = mine.backbone(x)
            loss = sum(
                functional.cross_entropy(mine.heads[task](features[n : n + 1]), y[n : n + 1])
                for n, task in enumerate(tasks.tolist())
            )
            (loss / len(x)).backward()
            optimizer.step()
            seen += len(x)
        assert seen == 3 * 40
    for one, other in zip(ours.parameters(), mine.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("validation", [True, False])
@pytest.mark.parametrize("patience", [None, 1])
@pytest.mark.parametrize("build", [small.model, small.model_with_norm, lambda tasks: small.model(shared_head=True)])
def test_with_one_task_it_is_finetune_to_the_bit(build, patience, validation):
    networks = [build(1), build(1)]
    stream = small.stream(1, validation=validation, shared_head=not isinstance(networks[0], cuber.MultiHead))
    settings = {"epochs": 12, "floor": 0.02, "patience": patience if validation else None}
    results = [
        learn(network, stream, kind, **settings)
        for network, kind in zip(networks, (cuber.Multitask, cuber.FineTune), strict=True)
    ]
    assert same_bits(*networks)
    ours, theirs = (result.to_dict() for result in results)
    for values in (ours, theirs):
        del values["method"], values["seconds"]
        for epoch in values["history"][0]:
            del epoch["seconds"]
    assert ours == theirs


def test_the_learning_rate_falls_and_the_best_weights_are_kept_by_the_loss_on_all_validation_samples():
    # Parts of different sizes: the mean is over samples, not over tasks.
    tasks = [
        cuber.Task(f"part {n}", small.blobs(10 * n, 40), small.blobs(10 * n + 1, 30), small.blobs(10 * n + 2, size))
        for n, size in enumerate((4, 20, 60))
    ]
    stream, network = cuber.Stream("uneven", tasks), small.model_with_norm()
    learner = cuber.Multitask(network)
    kept = []
    end_task = learner.end_task

    def spying(loader):
        for n, task in enumerate(stream):
            with learner.as_task(n):
                kept.append(evaluate(network, task.validation, 256, functional.cross_entropy))
        end_task(loader)

    learner.end_task = spying
    settings = {"epochs": 40, "lr": 0.2, "batch_size": 4, "patience": 2, "floor": 0.02}
    result = cuber.learn(learner, stream, **settings)
    (epochs,) = result.history
    losses = [epoch.validation_loss for epoch in epochs]
    best = losses.index(min(losses))
    assert best < len(losses) - 1, "nothing was restored"
    assert [epoch.kept for epoch in epochs] == [n == best for n in range(len(epochs))]
    assert sum(s.loss * n for s, n in zip(kept, (4, 20, 60), strict=True)) / 84 == pytest.approx(min(losses))
    assert sum(s.total for s in kept) / 84 == pytest.approx(epochs[best].validation_accuracy)
    schedule, expected = stopping(0.2, 2, 2.0, 0.02), []
    for epoch, loss in enumerate(losses):
        expected.append(schedule.lr)
        schedule.observe(epoch, loss)
    assert [epoch.lr for epoch in epochs] == pytest.approx(expected)
    assert schedule.stopped
    assert len(epochs) < 40


def test_an_optimizer_that_learns_nothing_has_the_schedule_of_finetune():
    factory = lambda parameters, lr: torch.optim.SGD(parameters, lr=lr * 1e-12)  # noqa: E731
    settings = {"epochs": 50, "lr": 1.0, "batch_size": 40, "patience": 2, "factor": 10, "floor": 0.05}
    result = learn(optimizer=factory, **settings)
    assert [epoch.lr * 1e12 for epoch in result.history[0]] == pytest.approx([1, 1, 1, 0.1, 0.1])


def test_tasks_without_a_validation_part_are_watched_on_training_samples_of_all():
    moments: list = []
    stream, learner = small.stream(validation=False), cuber.Multitask(small.model())
    result = cuber.learn(learner, stream, progress=moments.append, epochs=2, lr=0.05, batch_size=4)
    assert all(epoch.validation_loss is None for epoch in result.history[0])
    accuracies = []
    for number, task in enumerate(stream):
        with learner.as_task(number) as model:
            accuracies.append(evaluate(model, task.train, 256).accuracy)
    assert len(set(accuracies)) > 1
    # There are 120 samples, so all of them are watched.
    assert result.history[0][-1].train_accuracy == pytest.approx(mean(accuracies))
    assert [(m.task, m.tasks, m.name, m.epoch, m.finished, m.validated) for m in moments] == [
        (None, 3, "all tasks", epoch, finished, False) for epoch, finished in ((1, False), (2, False), (2, True))
    ]


def test_where_some_tasks_have_a_validation_part_those_are_what_is_validated_on():
    stream = cuber.Stream("some", [small.task(0), small.task(1, validation=False), small.task(2)])
    result = learn(stream=stream, patience=1)
    accuracies = [epoch.validation_accuracy for epoch in result.history[0]]
    assert all((accuracy * 0.4) == pytest.approx(round(accuracy * 0.4)) for accuracy in accuracies)  # of 40 samples


def test_a_shared_head_is_tested_with_bare_weights_too():
    result = learn(small.model(shared_head=True), small.stream(shared_head=True))
    assert len(result.accuracy_bare) == 1
    assert result.accuracy_bare == result.accuracy


def test_datasets_and_tensors_train_alike_and_the_seed_decides():
    class Pairs(torch.utils.data.Dataset):
        def __init__(self, part):
            self.part = part

        def __len__(self):
            return len(self.part)

        def __getitem__(self, index):
            return self.part.x[index], int(self.part.y[index])

    tensors = small.stream()
    datasets = cuber.Stream(
        "blobs",
        [
            tensors[0],
            *(cuber.Task(t.name, Pairs(t.train), Pairs(t.test), Pairs(t.validation), classes=3) for t in tensors[1:]),
        ],
    )
    networks = [small.model_with_norm() for _ in range(3)]
    results = [
        learn(network, stream, seed=seed)
        for network, stream, seed in zip(networks, (tensors, datasets, tensors), (0, 0, 1), strict=True)
    ]
    assert same_bits(networks[0], networks[1])
    assert results[0].accuracy == results[1].accuracy
    assert not same_bits(networks[0], networks[2])


def test_what_cannot_be_learnt_at_once_is_said_before_the_first_step():
    x, y = torch.rand(9, 4), torch.arange(9) % 3
    other = cuber.Task("other", (x, y), (x, y))
    network = cuber.MultiHead(torch.nn.AdaptiveAvgPool1d(4), 4, [3, 3])
    with pytest.raises(cuber.CuberError, match="cannot be learned at once: those of task 0 are of shape"):
        learn(network, cuber.Stream("odd", [small.task(0), other]))
    hidden = torch.nn.Sequential(small.model())
    with pytest.raises(cuber.CuberError, match="needs the heads at the very end"):
        learn(hidden)
    with pytest.raises(cuber.CuberError, match=r"all tasks, epoch \d, step \d+: the loss is (nan|inf)"):
        learn(MLP(8, 16, 3), small.stream(shared_head=True), lr=1e30)


@pytest.mark.parametrize(
    ("benchmark", "options", "margin"),
    [("split-digits", {"epochs": 6}, 0.5), ("permuted-digits", {"tasks": 3, "epochs": 3}, 15)],
)
def test_on_the_digits_it_knows_more_than_finetune_in_the_end(benchmark, options, margin):
    for seed in range(3):
        joint, one_by_one = (
            run(Experiment(benchmark, method, seed, **options)) for method in ("multitask", "finetune")
        )
        assert joint.acc > one_by_one.acc + margin
        assert min(joint.accuracy[0]) > 75
