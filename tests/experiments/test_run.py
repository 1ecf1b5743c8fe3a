"""Experiments: benchmarks fit together, and a description decides a result."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch

from cuber import CuberError
from cuber.core.settings import settings_of
from cuber.experiments import BENCHMARKS, Experiment, listing, run
from cuber.methods import METHODS
from cuber.training.learning import check_fit


@pytest.mark.parametrize("name", [name for name, benchmark in BENCHMARKS.items() if not benchmark.datasets])
@pytest.mark.parametrize("method", METHODS)
def test_stream_network_and_settings_of_every_benchmark_go_together(name, method):
    benchmark = BENCHMARKS[name]
    stream = benchmark.stream(0)
    assert stream.name == benchmark.name == name
    experiment = Experiment(name, method)
    learner = experiment.method_class(benchmark.network(stream), **experiment.method_settings())
    check_fit(learner, stream)


def test_presets_name_methods_and_settings_that_exist():
    for benchmark in BENCHMARKS.values():
        for method, settings in benchmark.settings.items():
            if method in METHODS:  # the paper's table has methods that are yet to come
                assert settings.keys() - {"lr"} <= settings_of(METHODS[method]).keys()


def test_an_experiment_overrides_its_preset():
    experiment = Experiment("permuted-digits", "gpm", epochs=7, settings={"threshold": 0.9})
    preset = BENCHMARKS["permuted-digits"]
    assert experiment.training() == dataclasses.replace(preset.training, epochs=7)
    assert experiment.method_settings() == {**preset.settings["gpm"], "threshold": 0.9}


def test_an_experiment_can_be_sent_to_another_process():
    experiment = Experiment("split-digits", "trgp", seed=3, settings={"eps1": 0.3})
    assert pickle.loads(pickle.dumps(experiment)) == experiment
    assert pickle.loads(pickle.dumps(run)) is run


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"benchmark": "digits"}, "there is no benchmark 'digits'"),
        ({"method": "GPM"}, "there is no method 'GPM'"),
        ({"seed": "0"}, "seed must be a whole number"),
        ({"epochs": 0}, "epochs must be"),
        ({"threads": -1}, "threads must be"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(wrong, sentence):
    with pytest.raises(CuberError, match=sentence):
        Experiment(**wrong)


def test_threads_are_given_back_and_the_seed_decides():
    torch.set_num_threads(2)
    try:
        one, same, other = (run(Experiment(tasks=1, epochs=1, seed=seed)) for seed in (0, 0, 1))
        assert torch.get_num_threads() == 2
        assert one.machine["threads"] == BENCHMARKS["overlap-digits"].threads == 1
        assert run(Experiment(tasks=1, epochs=1, threads=2)).machine["threads"] == 2
    finally:
        torch.set_num_threads(1)
    assert one.history[0][0].train_loss == same.history[0][0].train_loss != other.history[0][0].train_loss


def test_the_catalogue_says_each_setting_once_for_each_family():
    entries = {entry.name: entry for entry in listing.methods()}
    assert entries.keys() == METHODS.keys()
    assert entries["cuber"].inherits == "trgp"
    assert entries["trgp"].inherits == "gpm"
    assert entries["gpm"].inherits is None
    for name, method in METHODS.items():
        known, entry = set(), entries[name]
        while entry:
            known |= {setting for setting, _, _ in entry.settings}
            entry = entries.get(entry.inherits)
        assert known == settings_of(method).keys()
    assert [entry.name for entry in listing.benchmarks()] == list(BENCHMARKS)
