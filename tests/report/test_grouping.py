"""Which runs belong together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cuber.datasets import OFFICIAL_SIZE
from cuber.experiments.results import FINISHED, INCOMPLETE, RunRecord
from cuber.report.grouping import make_report
from cuber.report.model import Estimate, Group
from tests.made_up import result, shifted


def run(method: str = "cuber", seed: int = 0, config=None, name: str = "a", **changes) -> RunRecord:
    return RunRecord(Path(name), FINISHED, config or {}, result(method, seed, **changes))


def group(runs) -> Sequence[Group]:
    return make_report(runs).groups


def labels(groups) -> list[str]:
    return [variant.label for one in groups for variant in one.variants]


def test_seeds_of_one_method_are_one_variant():
    (one,) = group([run(seed=2), run(seed=0), run(seed=1), RunRecord(Path("b"), INCOMPLETE)])
    (variant,) = one.variants
    assert variant.label == "cuber"
    assert list(variant.by_seed) == [0, 1, 2]
    assert one.notes == []


def test_methods_come_in_the_order_of_the_paper():
    assert labels(group([run(m) for m in ("zeta", "cuber", "gpm", "alpha", "multitask", "trgp")])) == [
        *("multitask", "gpm", "trgp", "cuber", "alpha", "zeta")
    ]


def test_what_differs_makes_a_variant_and_its_name():
    runs = [run(settings={"eps2": eps2, "threshold": 0.97}) for eps2 in (0.5, 0.1, -0.1, 10)]
    assert labels(group([*runs, run("gpm")])) == [
        "gpm",
        "cuber eps2=-0.1",
        "cuber eps2=0.1",
        "cuber eps2=0.5",
        "cuber eps2=10",
    ]


def test_told_and_detected_boundaries_make_variants():
    chosen = {"false_alarms": 0.001, "delay": 20, "warm_up": 200}
    training = {"epochs": 5, "lr": 0.01}
    runs = [run(training=training)] + [
        run(seed=seed, training=training | {"boundaries": chosen | {"delay": delay}, "epoch_samples": 1000})
        for seed, delay in enumerate((20, 5))
    ]
    earlier = run(training=training | {"boundaries": chosen})  # which did not say how long an epoch was
    assert labels(group(runs[:2])) == ["cuber boundaries=detected", "cuber boundaries=told"]
    assert labels(group(runs[1:])) == ["cuber delay=5", "cuber delay=20"]
    assert labels(group([runs[1], earlier])) == ["cuber epoch_samples=1000", "cuber epoch_samples=?"]


def test_training_and_options_make_variants_too():
    runs = [
        run(training={"epochs": 5, "lr": 0.01, "optimizer": "SGD"}),
        run(training={"epochs": 5, "lr": 0.1, "optimizer": "SGD"}),
    ]
    assert labels(group(runs)) == ["cuber lr=0.01", "cuber lr=0.1"]
    orders = [
        {"experiment": {"options": {"order": name}, "data_dir": name, "threads": 1}} for name in ("code", "paper")
    ]
    assert labels(group([run(config=config) for config in orders])) == ["cuber order=code", "cuber order=paper"]
    # A result alone does not tell
    assert labels(group([run(config=orders[0]), run()])) == ["cuber order=?", "cuber order=code"]


def test_equal_values_are_equal_however_they_are_written():
    runs = [run(seed=n, settings={"eps2": eps2, "samples": [1, 2]}) for n, eps2 in enumerate((0, 0.0))]
    assert labels(group([*runs, run(seed=2, settings={"eps2": 0.0, "samples": [1.0, 2.0]})])) == ["cuber"]
    lists = [run(settings={"samples": samples}) for samples in ([1, 2], [1, 3], None)]
    assert labels(group(lists)) == ["cuber samples=[1,2]", "cuber samples=[1,3]", "cuber samples=none"]


def test_machine_threads_and_place_make_no_variant():
    configs = [{"experiment": {"threads": n, "device": f"cuda:{n}", "seed": n, "parameters": 9}} for n in range(2)]
    machines = [{"threads": n} for n in range(2)]
    runs = [run(seed=n, config=configs[n], machine=machines[n]) for n in range(2)]
    assert labels(group(runs)) == ["cuber"]


def test_streams_of_different_sizes_are_not_mixed():
    short = result().tasks[:2]
    few = run("gpm", tasks=short, accuracy=[[90.0, None], [91.0, 80.0]], notes=["only 2 of 3 tasks"])
    small = run("gpm", notes=["only 20 training samples per task", "only 1 of 5 epochs"])
    groups = group([run("gpm"), few, small])
    assert [one.title for one in groups] == [
        "made-up",
        "made-up (only 2 of 3 tasks)",
        "made-up (only 20 training samples per task)",
    ]
    assert labels(groups) == ["gpm"] * 3
    assert groups[0].variants[0].shrunk == []
    assert groups[2].variants[0].shrunk == ["only 20 training samples per task", "only 1 of 5 epochs"]


def test_notes_about_single_tasks_do_not_part_seeds():
    runs = [run(seed=n, notes=[f"part {n}: {n} training images left out"]) for n in range(3)]
    assert labels(group(runs)) == ["cuber"]


def test_a_part_of_the_official_data_is_another_stream():
    few, copies = f"part 1: 20 training {OFFICIAL_SIZE} 73,257", "part 1: 4 training images left out"
    groups = group([run(seed=0), run(seed=1, notes=[few, copies])])
    assert [one.title for one in groups] == ["made-up", f"made-up ({few})"]
    assert [one.variants[0].shrunk for one in groups] == [[], [few]]


def test_the_first_of_several_runs_with_one_seed_counts_and_that_is_said():
    again = [run(name="b"), run(name="c", accuracy=shifted(acc=1.0))]
    (one,) = group([run(name="a"), *again])
    assert [made.acc for made in one.variants[0].results] == [80.0]
    assert one.notes == [
        "cuber: b repeats seed 0 with the same accuracies; only a is counted",
        "cuber: c repeats seed 0 with different accuracies; only a is counted",
    ]


def test_of_equal_runs_the_one_with_the_conditions_of_the_theorems_counts():
    (one,) = group([run(name="a"), run(name="b", theory=[{}, {}, {}]), run(name="c", theory=[{}, {}, {}])])
    assert one.variants[0].results[0].theory == [{}, {}, {}]
    assert one.notes == [
        "cuber: c repeats seed 0 with the same accuracies; only b is counted",
        "cuber: a repeats seed 0 with the same accuracies; only b is counted",
    ]


def test_methods_that_were_not_trained_alike_are_named():
    slow = {"epochs": 20, "lr": 0.5, "batch_size": 10}
    (one,) = group([run(), run("gpm", training=slow), run("trgp")])
    assert one.notes == ["trained differently: epochs is 20 for gpm, 5 for trgp and cuber"]


def test_pairs_have_the_same_seed_and_the_same_tasks():
    other = [{"name": "else", "classes": 2}] * 3
    runs = [run(seed=n) for n in (0, 1, 2)] + [run("gpm", 1), run("gpm", 2, tasks=other), run("gpm", 3)]
    (one,) = group(runs)
    gpm, cuber = one.variants
    assert [(ours.seed, theirs.method) for ours, theirs in cuber.pairs(gpm)] == [(1, "gpm")]


def test_a_missing_value_is_no_mean() -> None:
    assert Estimate.of([1.0, None]) is None
    assert Estimate.of([]) is None
