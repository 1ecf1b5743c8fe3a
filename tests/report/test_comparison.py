"""Tables of `cuber compare`, with every number computed by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from cuber import CuberError
from cuber.datasets import OFFICIAL_SIZE
from cuber.experiments import Experiment
from cuber.experiments.results import FINISHED, INCOMPLETE, RunRecord
from cuber.report.comparison import compare
from cuber.report.grouping import make_report
from tests.made_up import MATRIX, result, shifted
from tests.report.tables import CIFAR, made, seeds, table, texts


def papers(lr: float = 0.01) -> dict:
    """Of a run on Split CIFAR-100 as the paper's were."""
    return {"benchmark": CIFAR, "training": {"epochs": 200, "lr": lr, "batch_size": 64}}


# ACC and BWT


def test_mean_and_deviation_over_seeds():
    one = table("acc", *seeds("cuber", (0, 0), (1, 0.3), (2, 0.6)), *seeds("gpm", (3, -1)))
    assert [column.heading for column in one.columns] == ["variant", "n", "ACC %", "BWT %"]
    # ACC 80, 81, 82; BWT 0, 0.3, 0.6
    assert texts(one) == {"gpm": ["1", "83.00", "-1.00"], "cuber": ["3", "81.00±1.00", "+0.30±0.30"]}
    assert one.plain()[0] == {
        "variant": "gpm",
        "seeds": 1,
        "acc": 83,
        "acc_deviation": None,
        "bwt": pytest.approx(-1),
        "bwt_deviation": None,
    }


def test_the_papers_figures_and_the_difference_to_them():
    one = table("acc", *seeds("cuber", (-4, 0), (-5, 0.2), **papers()), *seeds("mine", (0, 0), **papers()))
    assert [column.heading for column in one.columns] == [
        *("variant", "n", "ACC %", "paper", "diff.", "BWT %", "paper", "diff.")
    ]
    # 75.5 - 75.54, and 0.1 - 0.13; deviations sqrt(0.5) and sqrt(0.02)
    assert texts(one) == {
        "cuber": ["2", "75.50±0.71", "75.54±0.22", "-0.04", "+0.10±0.14", "0.13±0.08", "-0.03"],
        "mine": ["1", "80.00", "-", "-", "0.00", "-", "-"],
    }
    assert one.notes == []


def test_parts_of_a_benchmark_are_not_measured_by_the_paper():
    notes = ["only 3 of 10 tasks", "only 5 of 200 epochs"]
    one = table("acc", *seeds("cuber", (0, 0), notes=notes, **papers()))
    assert texts(one)["cuber"] == ["1", "80.00", "75.54±0.22", "-", "0.00", "0.13±0.08", "-"]
    assert one.notes == [
        "the paper's figures are for the whole benchmark, these runs for a part: "
        "only 3 of 10 tasks; only 5 of 200 epochs"
    ]
    assert one.caption.endswith("on split-cifar100 (only 3 of 10 tasks)")


@pytest.mark.parametrize("benchmark", ["made-up", "overlap-digits", CIFAR])
def test_fewer_epochs_are_told_on_every_benchmark(benchmark):
    short = seeds("cuber", (0, 0), benchmark=benchmark, notes=["only 3 of 20 epochs"])
    (told,) = [note for note in made(*short).tables[0].notes if "epochs" in note]
    assert told.endswith("only 3 of 20 epochs")
    whole = seeds("gpm", (0, 0), benchmark=benchmark)
    assert "cuber: only 3 of 20 epochs" in made(*short, *whole).tables[0].notes
    assert "cuber: only 3 of 20 epochs" in made(*short, *whole, tables=["time"]).tables[0].notes


def test_parts_of_its_data_are_not_measured_by_the_paper_either():
    copies = "part 0: 8 training images left out, found among the test images too"
    some = f"40 training {OFFICIAL_SIZE} 50,000"
    harmless, cut = (seeds("gpm", (0, 0), notes=notes, **papers()) for notes in ([copies], [some, copies]))
    assert "-" not in texts(table("acc", *harmless))["gpm"]
    one = table("acc", *cut)
    assert [texts(one)["gpm"][place] for place in (3, 6)] == ["-", "-"]
    assert one.notes == [f"the paper's figures are for the whole benchmark, these runs for a part: {some}"]


def test_other_settings_than_the_papers_are_told():
    settings = {"eps2": 0.0, "threshold": 0.5, "penalty": "energy", "lam": 1}
    one = table("acc", *seeds("cuber", (0, 0), settings=settings, **papers(lr=0.5)))
    assert one.notes == [
        "cuber: settings differ from the benchmark's: "
        "threshold is 0.5, not 0.97; penalty is energy, not norm; lr is 0.5, not 0.01"
    ]


def test_more_epochs_than_the_papers_are_told_and_fewer_have_a_note_of_their_own():
    for epochs, told in ((100, 0), (400, 1)):
        training = {"epochs": epochs, "lr": 0.01, "batch_size": 64}
        notes = table("acc", *seeds("cuber", (0, 0), benchmark=CIFAR, training=training)).notes
        assert notes == ["cuber: settings differ from the benchmark's: epochs is 400, not 200"][:told]


OWN = "cuber: settings differ from the benchmark's: eps2 is -0.1, not 0; lam is 3, not 1; penalty is energy, not norm"


@pytest.mark.parametrize(
    ("benchmark", "protocol", "notes"),
    [("five-datasets", "code", []), ("five-datasets", "paper", []), ("permuted-mnist", "usual", [OWN])],
)
def test_either_of_the_papers_protocols_is_its_own_and_ours_is_noted(benchmark, protocol, notes):
    experiment = Experiment(benchmark, "cuber", protocol=protocol)
    training = dataclasses.asdict(experiment.training())
    whole = result("cuber", benchmark=benchmark, settings=experiment.method_settings(), training=training)
    assert table("acc", whole).notes == notes


def test_variants_are_named_by_their_protocol_where_it_decides_all_settings():
    def runs(*by_protocol: tuple[str, float, float]) -> list[str]:
        records = [
            RunRecord(Path(f"run{n}"), FINISHED, {"experiment": {"protocol": protocol}}, result("ewc", n, **changes))
            for n, (protocol, lr, lam) in enumerate(by_protocol)
            for changes in [{"training": {"epochs": 5, "lr": lr}, "settings": {"lam": lam}}]
        ]
        return [row[0] for row in compare(make_report(records), None, ["acc"]).tables[0].texts()]

    assert runs(("paper", 0.1, 10.0), ("tuned", 0.2, 30.0)) == ["ewc protocol=paper", "ewc protocol=tuned"]
    assert runs(("paper", 0.1, 10.0), ("tuned", 0.2, 30.0), ("tuned", 0.2, 40.0))[1:] == [
        "ewc protocol=tuned lam=30 lr=0.2",
        "ewc protocol=tuned lam=40 lr=0.2",
    ]


def test_a_setting_that_an_earlier_version_did_not_have_makes_no_variant():
    earlier = result("trgp", 0, settings={"threshold": 0.97}, benchmark=CIFAR)
    usual = result("trgp", 1, settings={"threshold": 0.97, "norm_parameters": "shared"}, benchmark=CIFAR)
    other = result("trgp", 1, settings={"threshold": 0.97, "norm_parameters": "task"}, benchmark=CIFAR)
    assert list(texts(table("acc", earlier, usual))) == ["trgp"]
    assert list(texts(table("acc", earlier, other))) == ["trgp norm_parameters=shared", "trgp norm_parameters=task"]


def test_reported_figures_come_with_what_the_papers_authors_got():
    one = table("acc", *seeds("ewc", (0, 0), **papers(lr=0.05)), *seeds("gpm", (0, 0), **papers()))
    assert texts(one)["ewc"][2] == "68.80±0.88"
    assert one.notes == ["the paper quotes reported figures here; its authors' own runs gave: ewc 68.30±0.65 and -2±1"]


def test_all_tasks_at_once_have_no_backward_transfer():
    joint = [result("multitask", n, benchmark=CIFAR, accuracy=[[90.0, 80.0, 70.0]]) for n in range(2)]
    comparison = made(*joint, *seeds("trgp", (0, 0), (1, 0), benchmark=CIFAR), *seeds("gpm", (0, 0), benchmark=CIFAR))
    by_kind = {one.kind: texts(one) for one in comparison.tables}
    assert by_kind["acc"]["multitask"] == ["2", "80.00±0.00", "79.58±0.54", "+0.42", "-", "-", "-"]
    assert by_kind["differences"]["multitask"][-3:] == ["-", "-", "-"]
    assert set(by_kind["forward"]) == {"trgp"}


def test_shared_heads_are_shown_told_and_not_told():
    bare = [result("cuber", n, accuracy_bare=shifted(-n, -1)) for n in (1, 2)]
    one = table("acc", *bare, result("gpm", accuracy_bare=MATRIX))
    assert texts(one) == {
        "gpm": ["1", "80.00", "0.00"],
        "cuber": ["2", "80.00±0.00", "0.00±0.00"],
        "cuber, task not told": ["2", "78.50±0.71", "-1.00±0.00"],
    }


def test_the_inferred_task_has_a_row_of_its_own():
    one = table("acc", result("cuber", accuracy_bare=shifted(-1, 0), accuracy_inferred=MATRIX), result("gpm"))
    assert list(texts(one)) == ["gpm", "cuber", "cuber, task inferred", "cuber, task not told"]
    assert texts(one)["cuber, task inferred"] == ["1", "80.00", "0.00"]


def test_the_row_of_the_inferred_task_counts_the_runs_that_have_it():
    earlier = result("cuber", 0, accuracy=shifted(5))
    one = table("acc", earlier, *(result("cuber", n, accuracy_inferred=shifted(n)) for n in (1, 3)))
    assert texts(one)["cuber"] == ["3", "81.67±2.89", "0.00±0.00"]
    assert texts(one)["cuber, task inferred"] == ["2", "82.00±1.41", "0.00±0.00"]


def test_the_papers_figures_stand_beside_rows_that_are_told_the_task_alone():
    shown = texts(table("acc", result("trgp", benchmark=CIFAR, accuracy_bare=shifted(-1), accuracy_inferred=MATRIX)))
    assert shown["trgp"][2] == "74.46±0.32"
    for view in ("task inferred", "task not told"):
        _, _, *beside_acc, bwt, paper_bwt, difference = shown[f"trgp, {view}"]
        assert [*beside_acc, paper_bwt, difference] == ["-"] * 4
        assert bwt == "0.00"


def test_the_spread_that_the_order_of_the_test_samples_causes():
    # ACC over the orders: 80, 82 (deviation sqrt(2)) and 80, 80 (deviation 0): sqrt(2) / 2 on average
    orders = [[[90.0, 78.0, 72.0], [90.0, 80.0, 76.0]], [[80.0, 80.0, 80.0]] * 2]
    one = table("acc", *(result("cuber", n, reshuffled=orders[n]) for n in range(2)), result("gpm"))
    assert texts(one)["cuber"][-1] == "0.71"
    assert texts(one)["gpm"][-1] == "-"
    assert one.rows[1]["acc_deviation_of_order"] == pytest.approx(math.sqrt(2) / 2)
    assert "orders of the test samples" in one.notes[0]


# Differences


def test_differences_on_the_seeds_that_match():
    cuber = seeds("cuber", (1, 0.5), (2, 0.5), (6, 0.5), (50, 9))
    one = table("differences", *cuber, *seeds("trgp", (0, 0), (0, 0), (0, 0)), *seeds("gpm", (0, 0)))
    assert one.title == "Differences to trgp with the same seeds"
    assert [row["variant"] for row in one.rows] == ["cuber"]  # gpm has one seed only
    # Differences 1, 2, 6: mean 3, deviation sqrt(7), error sqrt(7/3); t of 2 degrees at 97.5 %: 4.3027
    row = one.rows[0]
    half = 4.3027 * math.sqrt(7 / 3)
    assert row["seeds"] == 3
    assert row["acc_difference"] == pytest.approx(3)
    assert row["acc_interval"] == pytest.approx((3 - half, 3 + half), abs=1e-3)
    # P(|t| > t0) with 2 degrees of freedom is 1 - t0 / sqrt(t0^2 + 2), and t0^2 = 27 / 7
    assert row["acc_p"] == pytest.approx(1 - math.sqrt(27 / 7) / math.sqrt(27 / 7 + 2))
    assert one.texts()[0] == ["cuber", "3", "+3.00", "[-3.57, +9.57]", "0.188", "+0.50", "-", "-"]


def test_what_to_compare_with_can_be_chosen():
    runs = [*seeds("cuber", (0, 0), (3, 0)), *seeds("gpm", (1, 0), (1, 0)), *seeds("trgp", (0, 0), (0, 0))]
    one = table("differences", *runs, against="gpm")
    assert {row["variant"]: row["acc_difference"] for row in one.rows} == {"trgp": -1, "cuber": 0.5}
    swept = [*seeds("trgp", (0, 0), settings={"eps1": 0.5}), *seeds("trgp", (0, 0), settings={"eps1": 0.2})]
    # Ambiguous without --against.
    twice = [*seeds("cuber", (0, 0), (0, 0)), *swept, *(result("trgp", 1, settings=one.settings) for one in swept)]
    assert not [one for one in made(*twice).tables if one.kind == "differences"]
    with pytest.raises(CuberError, match=r"'trgp' may be any of 'trgp eps1=0.2', 'trgp eps1=0.5' on made-up: name one"):
        made(*swept, against="trgp")
    with pytest.raises(
        CuberError, match=r"there is no variant 'gpn'; did you mean 'gpm'\? \(known: gpm, trgp, cuber\)"
    ):
        made(*runs, against="gpn")


# Transfer


def regime(number: int, demoted_at: int | None = None) -> dict:
    return {"regime": number, "ratio": 0.5, "cosine": 0.1, "demoted_at": demoted_at}


def selecting(seed: int, second: int, matrix=MATRIX):
    """Task 1 selects task 0, task 2 selects ``second``, with one layer against another task."""
    votes = {"a": {second: regime(3)}, "b": {second: regime(2, demoted_at=4)}, "c": {1 - second: regime(3)}}
    return result("cuber", seed, accuracy=matrix, regimes=[{"a": {}}, {"a": {0: regime(3)}}, votes])


def test_what_new_tasks_did_to_the_old_ones_selected_for_them():
    other = [[90.0, None, None], [93.0, 80.0, None], [92.0, 79.0, 70.0]]
    one = table("selected", selecting(0, 1), selecting(1, 1, other), selecting(2, 0), *seeds("trgp", (0, 0), (0, 0)))
    # Task 1 on task 0: +1, +3, +1. Task 2 on task 1: -2, -1; on task 0: +1. Averages of the seeds: -0.5, 1, 1
    # trgp has seeds 0 and 1, with the first matrix: +1, +1; -2, -2; -0.5, -0.5
    assert one.texts() == [
        ["1", "0 (3)", "+1.67±1.15", "+1.00±0.00"],
        ["2", "0 (1), 1 (2)", "-0.67±1.53", "-2.00±0.00"],
        ["average", "-", "+0.50±0.87", "-0.50±0.00"],
    ]
    assert one.context == {"variant": "cuber", "other": "trgp"}


def test_all_tasks_at_once_have_no_say_in_what_was_selected():
    joint = result("multitask", accuracy=[[90.0, 80.0, 70.0]])
    one = table("selected", selecting(0, 1), joint, against="multitask")
    assert [column.heading for column in one.columns] == ["task", "selected (seeds)", "cuber"]


def test_selections_beside_the_papers():
    names = [{"name": str(n)} for n in range(7)]
    matrix = [[50.0 + i if j <= i else None for j in range(7)] for i in range(7)]
    regimes = [{"a": {task - 1: regime(3)} if task else {}} for task in range(7)]
    one = table("selected", result(benchmark="overlap-cifar100", tasks=names, accuracy=matrix, regimes=regimes))
    assert texts(one)["4"] == ["3 (1)", "+1.00", "3", "+0.03", "-0.60"]
    assert texts(one)["3"] == ["2 (1)", "+1.00", "-", "-", "-"]
    assert texts(one)["average"] == ["-", "+1.00", "-", "+0.33", "-0.23"]  # the paper's averages are 0.33 and -0.23


def test_forward_transfer_over_gpm():
    # The mean diagonal is moved by ACC - 2/3 BWT: for cuber 1 and 4, for gpm 1 and 2; differences 0 and 2
    one = table(
        "forward", *seeds("cuber", (1, 0), (6, 3), benchmark=CIFAR), *seeds("gpm", (3, 3), (2, 0), benchmark=CIFAR)
    )
    assert one.title == "FWT over gpm"
    row = one.rows[0]
    assert (row["variant"], row["seeds"]) == ("cuber", 2)
    assert row["fwt"].mean == pytest.approx(1)
    assert row["fwt"].deviation == pytest.approx(math.sqrt(2))
    assert row["fwt_p"] == pytest.approx(0.5)  # t is 1, of one degree of freedom: 1 - 2 atan(1) / pi
    assert one.texts()[0] == ["cuber", "2", "+1.00±1.41", "[-11.71, +13.71]", "0.500", "+2.79", "-1.79"]


@pytest.mark.parametrize("kind", ["acc", "forward", "time", "sweep"])
def test_wherever_a_part_is_beside_the_papers_figures_that_is_said(kind):
    runs = [result("cuber", n, benchmark=CIFAR, settings={"eps2": n / 5}, notes=["only 2 of 9 epochs"]) for n in (0, 1)]
    gpm = [result("gpm", n, benchmark=CIFAR, notes=["only 2 of 9 epochs"]) for n in (0, 1)]
    (one,) = made(*runs, *gpm, tables=[kind]).tables
    assert "the paper's figures are for the whole benchmark, these runs for a part: only 2 of 9 epochs" in one.notes


# A swept setting


def test_a_sweep_beside_the_papers():
    runs = [
        result(benchmark=CIFAR, settings={"eps2": eps2}, accuracy=shifted(-4, eps2)) for eps2 in (0.5, 0.0, 0.2, 0.3)
    ]
    one = table("sweep", *runs, result("gpm", benchmark=CIFAR))
    assert texts(one) == {
        "0": ["1", "76.00", "75.54", "+0.46", "0.00", "0.22", "-0.22"],
        "0.2": ["1", "76.00", "75.73", "+0.27", "+0.20", "0.03", "+0.17"],
        "0.3": ["1", "76.00", "-", "-", "+0.30", "-", "-"],
        "0.5": ["1", "76.00", "75.55", "+0.45", "+0.50", "0.01", "+0.49"],
    }
    # In the main table eps2 = 0 has the main table's figures, and one that the paper did not try has none.
    main = texts(table("acc", *runs))
    assert [row[2] for row in main.values()] == ["75.54±0.22", "75.73", "-", "75.55"]


def test_a_sweep_of_two_settings_has_a_row_for_each_pair():
    runs = [result(settings={"eps2": eps2, "lam": lam}) for lam in (1, 3) for eps2 in (0.1, 0.0)]
    one = table("sweep", *runs)
    assert one.title == "cuber with different values of eps2 and lam"
    assert [row[:2] for row in one.texts()] == [["0", "1"], ["0", "3"], ["0.1", "1"], ["0.1", "3"]]
    assert [(row["eps2"], row["lam"]) for row in one.plain()] == [(0.0, 1), (0.0, 3), (0.1, 1), (0.1, 3)]


# Which tables there are


def test_tables_that_the_runs_do_not_allow_are_left_out_or_refused():
    assert [one.kind for one in made(result()).tables] == ["acc", "time", "memory"]
    assert [one.kind for one in made(result(), tables=["time"]).tables] == ["time"]
    with pytest.raises(CuberError, match="table 'forward' cannot be made of these runs: it needs runs of gpm"):
        made(result(), tables=["forward"])
    with pytest.raises(CuberError, match="there is no table 'tim'; did you mean 'time'"):
        made(result(), tables=["tim"])


def test_what_must_be_known_of_the_runs_is_said_once_whatever_the_table():
    again = [result(), result(), result(seed=1)]
    assert ["repeats seed" in note for one in made(*again).tables for note in one.notes] == [True]
    assert "repeats seed" in made(*again, tables=["memory"]).tables[0].notes[0]


def test_unfinished_runs_are_listed_and_never_counted():
    runs = [
        RunRecord(Path("a"), FINISHED, {}, result()),
        RunRecord(Path("b"), INCOMPLETE, {"experiment": {"method": "cuber"}}),
    ]
    comparison = compare(make_report(runs))
    assert [run.directory for run in comparison.unfinished] == [Path("b")]
    assert comparison.tables[0].rows[0]["seeds"] == 1
    assert compare(make_report(runs[1:])).tables == []
