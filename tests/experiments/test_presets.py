"""The presets of the paper's benchmarks against its table of hyper-parameters and the protocols."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cuber import CuberError
from cuber.core.settings import settings_of
from cuber.experiments import BENCHMARKS, Experiment, run
from cuber.methods import METHODS
from cuber.methods.cuber import PAPER as PRINTED
from cuber.training.learning import check_fit

PAPER = ["permuted-mnist", "split-cifar100", "overlap-cifar100", "five-datasets", "split-miniimagenet"]
CIFAR, FIVE, MINI = "split-cifar100", "five-datasets", "split-miniimagenet"

# The table, row by row: the learning rate, n, the threshold and what it grows by.
SUBSPACES = {
    "permuted-mnist": (0.01, 300, [0.95, 0.99, 0.99], 0.0),
    CIFAR: (0.01, [24, 100, 100, 125, 125], 0.97, 0.003),
    "overlap-cifar100": (0.01, [24, 100, 100, 125, 125], 0.97, 0.003),
    FIVE: (0.1, 100, 0.965, 0.0),
    MINI: (0.1, 100, 0.985, 0.003),
}
OTHERS = {
    ("owm", CIFAR): {"lr": 0.01},
    ("owm", "permuted-mnist"): {"lr": 0.03, "alpha": 300.0},  # ours: the preset says why it is not 0.3
    ("ewc", CIFAR): {"lr": 0.05, "lam": 50, "anchors": "last"},
    ("ewc", MINI): {"lr": 0.03, "lam": 25, "anchors": "last"},
    ("ewc", FIVE): {"lr": 0.03, "lam": 100, "anchors": "last"},
    ("ewc", "permuted-mnist"): {"lr": 0.03, "lam": 10, "anchors": "last"},
    ("hat", CIFAR): {"lr": 0.05, "smax": 400, "c": 0.75},
    ("hat", MINI): {"lr": 0.03, "smax": 400, "c": 0.75},
    ("hat", FIVE): {"lr": 0.1, "smax": 400, "c": 0.75},
    **{
        (method, name): {"lr": lr, "memory": memory, "replay": batch_size}
        for method in ("agem", "er")
        for name, lr, memory, batch_size in (
            (CIFAR, 0.05, 2000, 64),
            (MINI, 0.1, 500, 64),
            (FIVE, 0.1, 3000, 64),
            ("permuted-mnist", 0.1, 1000, 10),
        )
    },
    ("agem", "permuted-mnist"): {"lr": 0.1, "memory": 1000, "replay": 256},  # ours: as in A-GEM's own code
}


@pytest.mark.parametrize("name", PAPER)
def test_table_of_the_subspace_methods(name: str) -> None:
    lr, samples, threshold, step = SUBSPACES[name]
    for method in ("gpm", "trgp", "soft-cuber", "cuber"):
        experiment = Experiment(name, method, protocol="paper")
        settings = experiment.method_settings()
        assert (settings["samples"], settings["threshold"], settings["threshold_step"]) == (samples, threshold, step)
        assert experiment.training().lr == lr
        assert settings.get("eps1", 0.5) == 0.5
    assert (settings["eps1"], settings["eps2"], settings["lam"], settings["penalty"]) == (0.5, 0.0, 1.0, "norm")


@pytest.mark.parametrize("name", PAPER)
def test_the_usual_protocol_has_the_own_settings_of_cuber_and_changes_nothing_else(name: str) -> None:
    usual, paper = Experiment(name, "cuber", protocol="usual"), Experiment(name, "cuber", protocol="code")
    own = {key: default for key, (default, _) in settings_of(METHODS["cuber"]).items() if key in PRINTED}
    assert (own["eps2"], own["lam"], own["penalty"]) == (-0.1, 3.0, "energy")
    assert usual.method_settings() == paper.method_settings() | own
    assert usual.training() == paper.training()
    assert Experiment(name, "trgp", protocol="usual").method_settings() == Experiment(name, "trgp").method_settings()


@pytest.mark.parametrize("name", PAPER)
def test_table_of_the_other_methods(name: str) -> None:
    row = CIFAR if name == "overlap-cifar100" else name
    for method in METHODS.keys() - {"gpm", "trgp", "cuber", "soft-cuber"}:
        recorded = dict(BENCHMARKS[name].settings.get(method, {}))
        recorded.pop("norm_statistics", None)
        assert recorded == OTHERS.get((method, row), {})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PAPER)
def test_what_is_compared_is_normalized_alike(name: str, method: str) -> None:
    usual = "task" if name == "permuted-mnist" else "batch"
    for protocol in BENCHMARKS[name].protocols:
        experiment = Experiment(name, method, protocol=protocol)
        settings = {key: default for key, (default, _) in settings_of(experiment.method_class).items()}
        settings |= experiment.method_settings()
        assert settings["norm_statistics"] == usual
        if usual == "batch":  # as in the published code
            assert settings.get("norm_parameters", "shared") == "shared"


@pytest.mark.parametrize(
    ("name", "batch", "code", "paper"),
    [
        ("permuted-mnist", 10, (5, None, 2.0, 1e-5), (5, None, 2.0, 1e-5)),
        (CIFAR, 64, (200, 6, 2.0, 1e-5), (200, 6, 2.0, 1e-5)),
        ("overlap-cifar100", 64, (200, 6, 2.0, 1e-5), (200, 6, 2.0, 1e-5)),
        (FIVE, 64, (100, 5, 3.0, 1e-3), (200, 6, 2.0, 1e-5)),
        (MINI, 64, (100, 5, 3.0, 1e-3), (100, 6, 2.0, 1e-5)),
    ],
)
def test_schedules(name, batch, code, paper) -> None:
    for protocol, expected in ((None, code), ("code", code), ("paper", paper)):
        experiment = Experiment(name, protocol=protocol)
        training = experiment.training()
        assert training.batch_size == batch
        assert (training.epochs, training.patience, training.factor, training.floor) == expected
        assert experiment.notes() == []
    assert Experiment(MINI).method_settings()["threshold_step"] == 0.0


def test_everything_can_be_overridden() -> None:
    given = {"epochs": 3, "batch_size": 7, "lr": 0.5, "patience": 2, "factor": 4.0, "floor": 0.01}
    given |= {"evaluation_batch_size": 9, "precision": "bf16", "compile": True}
    training = Experiment(FIVE, protocol="paper", **given).training()
    assert dataclasses.asdict(training) == given
    assert Experiment(CIFAR, patience=0).training().patience is None


def test_a_learning_rate_of_the_methods_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = dataclasses.replace(BENCHMARKS[CIFAR], settings={"finetune": {"lr": 0.05, "norm_statistics": "batch"}})
    monkeypatch.setitem(BENCHMARKS, CIFAR, own)
    assert Experiment(CIFAR, "finetune").training().lr == 0.05
    assert Experiment(CIFAR, "finetune", lr=0.2).training().lr == 0.2
    assert Experiment(CIFAR, "finetune").method_settings() == {"norm_statistics": "batch"}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"benchmark": "split-digits", "protocol": "code"}, "there is no protocol"),
        ({"benchmark": FIVE, "protocol": "text"}, "there is no protocol 'text'"),
        (
            {"benchmark": CIFAR, "options": {"mnist_twice": True}},
            "has no option 'mnist_twice' .five-datasets has",
        ),
        ({"benchmark": FIVE, "options": {"order": "odd"}}, "there is no order 'odd'"),
        ({"benchmark": "overlap-cifar100", "options": {"images": "more"}}, "there is no images 'more'"),
        (
            {"benchmark": "overlap-fashion", "options": {"train_per_class": 3000}},
            "train_per_class must be a whole number from 1 to 2900, not 3000",
        ),
        ({"train_per_task": 0}, "train_per_task must be a whole number of at least 1"),
        ({"benchmark": CIFAR, "patience": -1}, "patience must be"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(wrong, sentence) -> None:
    with pytest.raises(CuberError, match=sentence):
        Experiment(**wrong)


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("method", METHODS)
def test_stream_network_and_settings_go_together(name: str, method: str, data_dir: Path) -> None:
    experiment = Experiment(name, method, data_dir=str(data_dir), tasks=2)
    stream = experiment.stream()
    assert stream.name == name
    learner = experiment.method_class(experiment.preset.network(stream), **experiment.method_settings())
    check_fit(learner, stream)
    for setting in {"samples", "threshold"} & experiment.method_settings().keys():
        value = experiment.method_settings()[setting]
        assert not isinstance(value, list) or len(value) == len(learner.layers)


@pytest.mark.parametrize("name", ["permuted-mnist", CIFAR, FIVE, MINI])
def test_learning_a_little_of_each(name: str, data_dir: Path) -> None:
    count = 1 if name == MINI else 2  # large images take their time
    small = {"tasks": count, "epochs": 1, "train_per_task": 12, "test_per_task": 10}
    result = run(Experiment(name, data_dir=str(data_dir), threads=1, **small))
    assert [(task["train"], task["test"]) for task in result.tasks] == [(12, 5 if name == MINI else 10)] * count
    whole = BENCHMARKS[name].training.epochs
    assert f"only 1 of {whole} epochs" in result.notes
    assert "only 12 training samples per task" in result.notes
    assert any(note.startswith(f"only {count} of ") for note in result.notes)


def test_whole_streams_have_nothing_to_tell() -> None:
    result = run(Experiment("split-digits", "finetune", train_per_task=100_000, tasks=5))
    assert result.notes == []
    shrunk = run(Experiment("split-digits", "finetune", tasks=1, train_per_task=50, test_per_task=20, epochs=2))
    assert shrunk.notes == [
        "only 1 of 5 tasks",
        "only 50 training samples per task",
        "only 20 test samples per task",
        "only 2 of 10 epochs",
    ]
    assert shrunk.to_dict()["notes"] == shrunk.notes
