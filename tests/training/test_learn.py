"""``cuber.learn``: the same as a loop of one's own, the same bits for the same seed."""

from __future__ import annotations

import functools
import json
import random

import numpy as np
import pytest
import torch
from torch.nn import functional

import cuber
from cuber import metrics
from cuber.streams import ShuffledLoader
from cuber.training import derive
from tests.loops import scalings
from tests.training import small

METHODS = [cuber.FineTune, cuber.AGEM, cuber.ER, cuber.GPM, cuber.TRGP, cuber.CUBER]


def weights(model) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in model.state_dict().values()])


def without_times(result) -> dict:
    values = result.to_dict()
    values.pop("seconds")
    for epoch in (epoch for epochs in values["history"] for epoch in epochs):
        epoch.pop("seconds")
    return values


@pytest.mark.parametrize("method", METHODS)
def test_the_result_has_its_shape(method):
    result = cuber.learn(method(small.model()), small.stream(), **small.FAST)
    assert [[value is None for value in row] for row in result.accuracy] == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]
    assert all(0 <= value <= 100 for row in result.accuracy for value in row if value is not None)
    assert result.acc == pytest.approx(metrics.average_accuracy(result.accuracy))
    assert result.bwt == pytest.approx(metrics.backward_transfer(result.accuracy))
    assert [len(epochs) for epochs in result.history] == [6, 6, 6]
    assert [epoch.kept for epoch in result.history[0]] == [False] * 5 + [True]
    assert len(result.seconds) == len(result.bytes) == 3
    assert result.method == method.__name__.lower()
    assert result.accuracy_bare is None
    assert result.acc > 60  # it learns something
    if issubclass(method, cuber.GPM):
        assert [set(layers) for layers in result.regimes] == [{"backbone.layers.0", "backbone.layers.1"}] * 3
        assert [sorted(layers["backbone.layers.0"]) for layers in result.regimes] == [[], [0], [0, 1]]
        assert result.regimes[2]["backbone.layers.0"][1].keys() == {"regime", "ratio", "cosine", "demoted_at"}


def test_the_pool_of_each_layer_is_counted_after_each_task():
    learner = cuber.GPM(small.model())
    result = cuber.learn(learner, small.stream(), **small.FAST)
    counts = [{name: after["size"] for name, after in layers.items()} for layers in result.pool]
    assert counts[-1] == {name: pool.size for name, pool in learner.memory.items()}
    for name, layer in learner.layers.items():
        sizes = [count[name] for count in counts]
        assert sizes == sorted(sizes)
        assert sizes[0] > 0
        assert {layers[name]["dimension"] for layers in result.pool} == {layer.dimension}
    assert cuber.learn(cuber.FineTune(small.model()), small.stream(), **small.FAST).pool == [{}, {}, {}]


def test_it_is_the_loop_that_one_would_write():
    stream, ours, mine = small.stream(2), small.model(2), small.model(2)
    cuber.learn(cuber.FineTune(ours), stream, seed=5, **small.FAST)
    for position, task in enumerate(stream):
        mine.select_task(position)
        others = [p for n, head in enumerate(mine.heads) if n != position for p in head.parameters()]
        trained = [p for p in mine.parameters() if not any(p is other for other in others)]
        optimizer = torch.optim.SGD(trained, lr=0.1)
        loader = ShuffledLoader(task.train, 4, torch.Generator().manual_seed(derive(5, "order", position)))
        for _ in range(6):
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(mine(x), y).backward()
                optimizer.step()
    assert torch.equal(weights(ours), weights(mine))


@pytest.mark.parametrize("build", [small.model, small.model_with_norm])
@pytest.mark.parametrize("patience", [None, 1])
def test_cuber_that_never_lets_change_follows_trgp_to_the_bit(build, patience):
    networks = [build(), build()]
    learners = [cuber.TRGP(networks[0]), cuber.CUBER(networks[1], eps2=2.0)]
    settings = {**small.FAST, "epochs": 12, "patience": patience, "floor": 0.02}
    one, other = (cuber.learn(learner, small.stream(), **settings) for learner in learners)
    assert torch.equal(weights(networks[0]), weights(networks[1]))
    assert one.accuracy == other.accuracy
    assert [[e.train_loss for e in task] for task in one.history] == [[e.train_loss for e in t] for t in other.history]
    for ours, theirs in (tuple(scalings(each, task) for each in learners) for task in range(learners[0].tasks)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[layer].matrix, theirs[layer].matrix) for layer in ours)
    assert any(scalings(learners[0], task) for task in range(learners[0].tasks))  # there was something to compare


def test_what_a_method_draws_and_looks_at_changes_no_training():
    class Curious(cuber.FineTune):
        def begin_task(self, loader, loss_fn=None, **options):
            super().begin_task(loader, loss_fn, **options)
            assert [x.tolist() for x, _ in loader] == [x.tolist() for x, _ in loader]
            torch.rand(5), np.random.rand(), random.random()

    networks = [small.model_with_norm(), small.model_with_norm()]
    cuber.learn(cuber.FineTune(networks[0]), small.stream(), **small.FAST)
    cuber.learn(Curious(networks[1]), small.stream(), **small.FAST)
    assert torch.equal(weights(networks[0]), weights(networks[1]))


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bits_and_another_seed_others(method):
    networks = [small.model_with_norm() for _ in range(3)]
    results = []
    for network, seed in zip(networks, (1, 1, 2), strict=True):
        torch.rand(3)  # whatever the caller did before must not matter
        results.append(cuber.learn(method(network), small.stream(), seed=seed, **small.FAST))
    assert without_times(results[0]) == without_times(results[1])
    assert torch.equal(weights(networks[0]), weights(networks[1]))
    assert not torch.equal(weights(networks[0]), weights(networks[2]))


def test_the_callers_random_numbers_and_mode_are_left_alone():
    network = small.model_with_norm().eval()
    learner = cuber.CUBER(network)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    cuber.learn(learner, small.stream(), **small.FAST)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    assert random.getstate() == states[2]
    assert not network.training


def test_datasets_and_tensors_train_alike():
    class Pairs(torch.utils.data.Dataset):
        def __init__(self, part):
            self.part = part

        def __len__(self):
            return len(self.part)

        def __getitem__(self, index):
            return self.part.x[index], int(self.part.y[index])

    tensors = small.stream(2)
    datasets = cuber.Stream(
        "blobs",
        [cuber.Task(t.name, Pairs(t.train), Pairs(t.test), Pairs(t.validation), classes=3) for t in tensors],
    )
    networks = [small.model_with_norm(2), small.model_with_norm(2)]
    results = [
        cuber.learn(cuber.CUBER(network), stream, **small.FAST)
        for network, stream in zip(networks, (tensors, datasets), strict=True)
    ]
    assert torch.equal(weights(networks[0]), weights(networks[1]))
    assert results[0].accuracy == results[1].accuracy


HALF = "SGD(lr=0.005, momentum=0.5, nesterov=True)"


def test_other_optimizers():
    stream = small.stream(2, shared_head=True)
    for factory, name in [
        (torch.optim.Adam, "Adam"),
        (functools.partial(torch.optim.SGD, momentum=0.9), "SGD(momentum=0.9)"),
        (lambda parameters, lr: torch.optim.AdamW(parameters, lr), "AdamW"),
        (lambda parameters, lr: torch.optim.SGD(parameters, lr / 2, nesterov=True, momentum=0.5), HALF),
        (lambda parameters, lr: torch.optim.SGD([{"params": [p]} for p in parameters], lr), "SGD"),
    ]:
        learner = cuber.CUBER(small.model(shared_head=True))
        result = cuber.learn(learner, stream, epochs=3, lr=0.01, optimizer=factory)
        assert result.training["optimizer"] == name


def test_a_shared_head_is_tested_with_bare_weights_too():
    learner = cuber.CUBER(small.model(shared_head=True))
    result = cuber.learn(learner, small.stream(shared_head=True), **small.FAST)
    assert [sum(value is not None for value in row) for row in result.accuracy_bare] == [1, 2, 3]
    with learner.as_task(None) as network, torch.no_grad():
        task = small.stream(shared_head=True)[1]
        accuracy = 100 * (network(task.test.x).argmax(1) == task.test.y).double().mean()
    assert result.accuracy_bare[2][1] == pytest.approx(float(accuracy))
    assert result.to_dict()["acc_bare"] == pytest.approx(metrics.average_accuracy(result.accuracy_bare))


@pytest.mark.parametrize("shared_head", [True, False])
def test_accuracy_is_measured_with_the_inferred_task_too(shared_head):
    learner, stream = cuber.CUBER(small.model(shared_head=shared_head)), small.stream(shared_head=shared_head)
    result = cuber.learn(learner, stream, **small.FAST)
    assert [sum(value is not None for value in row) for row in result.accuracy_inferred] == [1, 2, 3]
    for number, task in enumerate(stream):
        prediction, tasks = learner.predict(task.test.x), learner.infer_task(task.test.x).probabilities.argmax(1)
        right = prediction.output.argmax(1) == task.test.y
        if not shared_head:  # the labels of other tasks mean something else
            right &= tasks == number
        assert result.accuracy_inferred[2][number] == pytest.approx(100 * float(right.double().mean()))
    assert result.to_dict()["acc_inferred"] == pytest.approx(metrics.average_accuracy(result.accuracy_inferred))


def test_methods_that_cannot_infer_tasks_have_no_such_accuracy():
    for learner in (cuber.FineTune(small.model()), cuber.GPM(small.model(), task_inference=False)):
        result = cuber.learn(learner, small.stream(), **small.FAST)
        assert result.accuracy_inferred is None
        assert result.to_dict()["acc_inferred"] is None


def test_progress_is_told_and_changes_nothing():
    moments: list = []
    networks = [small.model(2), small.model(2)]
    stream = small.stream(2, validation=False)
    told = cuber.learn(cuber.CUBER(networks[0]), stream, progress=moments.append, **small.FAST)
    untold = cuber.learn(cuber.CUBER(networks[1]), stream, **small.FAST)
    assert without_times(told) == without_times(untold)
    assert [(m.task, m.epoch, m.finished) for m in moments] == [
        (task, epoch, finished)
        for task in range(2)
        for epoch, finished in [*((epoch, False) for epoch in range(1, 7)), (6, True)]
    ]
    assert all(0 <= m.accuracy <= 100 and not m.validated and m.tasks == 2 for m in moments)


def test_long_epochs_are_told_of_every_hundred_steps():
    x, y = small.blobs(0, 250)
    stream = cuber.Stream("long", [cuber.Task("a", (x, y), (x, y))])
    moments: list = []
    settings = {"epochs": 1, "lr": 0.01, "batch_size": 1}
    cuber.learn(cuber.FineTune(small.model(1)), stream, progress=moments.append, **settings)
    assert [m.epoch for m in moments] == [0.4, 0.8, 1, 1]


def test_batch_norm_never_meets_a_batch_of_one():
    x, y = small.blobs(0, 33)
    stream = cuber.Stream("odd", [cuber.Task("a", (x, y), (x[:9], y[:9]), classes=3)])
    learner = cuber.CUBER(small.model_with_norm(1), norm_statistics="batch")
    cuber.learn(learner, stream, epochs=1, lr=0.1, batch_size=8, evaluation_batch_size=8)


def test_the_result_is_valid_json_and_saved_whole(tmp_path):
    result = cuber.learn(cuber.CUBER(small.model()), small.stream(), **small.FAST)
    result.history[0][0].validation_loss = float("nan")
    path = result.save(tmp_path / "deep" / "down")
    assert path == tmp_path / "deep" / "down" / "result.json"
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]

    def no_constant(name):
        raise AssertionError(f"{name} is not JSON")

    saved = json.loads(path.read_text(), parse_constant=no_constant)
    assert saved == result.to_dict() | {"regimes": saved["regimes"]}
    assert saved["benchmark"] == "blobs"
    assert saved["method"] == "cuber"
    assert saved["seed"] == 0
    assert saved["accuracy"][0][1:] == [None, None]
    assert saved["acc"] == pytest.approx(result.acc)
    assert saved["bwt"] == pytest.approx(result.bwt)
    assert saved["forgetting"] == pytest.approx(result.forgetting)
    assert saved["history"][0][0]["validation_loss"] is None
    assert saved["training"]["evaluation_batch_size"] == 256
    assert saved["settings"]["eps1"] == learner_default("eps1")
    assert saved["regimes"][2]["backbone.layers.0"].keys() == {"0", "1"}
    assert saved["bytes"][2].keys() >= {"bases", "gradients", "scalings", "heads", "statistics"}
    assert saved["machine"]["threads"] == torch.get_num_threads()
    assert "ACC" in repr(result)


def learner_default(name):
    from cuber.core.settings import settings_of

    return settings_of(cuber.CUBER)[name][0]


def test_a_result_that_cannot_be_written_leaves_nothing(tmp_path):
    result = cuber.learn(cuber.FineTune(small.model(1)), small.stream(1), **small.FAST)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(cuber.CuberError, match="cannot write"):
        result.save(tmp_path / "file")
    result.machine["torch"] = {1: object()}  # whatever it is, it becomes text
    assert result.save(tmp_path).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "result.json"]
    assert result.bwt is None
    assert json.loads((tmp_path / "result.json").read_text())["bwt"] is None
