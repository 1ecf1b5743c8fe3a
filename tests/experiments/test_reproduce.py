"""``cuber reproduce``: the runs that each table and figure needs, how long they take, and what is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cuber import CuberError
from cuber.cli.main import main
from cuber.experiments import Experiment, reproduce
from cuber.experiments.presets import BENCHMARKS
from cuber.experiments.reproduce import SCALES, TARGETS, cells_of, seconds_needed, seconds_per_step
from cuber.methods import METHODS
from cuber.report.comparison import TABLES
from cuber.report.figures import FIGURES
from cuber.report.paper import ACCURACY
from tests.datasets.every_set import write_every_set
from tests.made_up import result, write


@pytest.fixture
def cuber(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command in this process; exit code and all that it prints."""

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out + captured.err  # type: ignore[return-value]

    return call


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_names_what_there_is(name: str) -> None:
    target = TARGETS[name]
    assert set(target.methods) <= set(BENCHMARKS)
    assert {method for methods in target.methods.values() for method in methods} <= set(METHODS)
    assert set(target.tables) <= set(TABLES)
    assert target.tables or target.figure in FIGURES


def test_the_main_table_has_every_entry_of_the_paper_and_no_other() -> None:
    asked = {(benchmark, method) for benchmark, methods in TARGETS["table1"].methods.items() for method in methods}
    printed = {(benchmark, method) for benchmark in TARGETS["table1"].methods for method in ACCURACY[benchmark]}
    assert asked == printed


def test_full_runs_are_the_papers_and_shorter_scales_only_shorten() -> None:
    for cell in cells_of("table1", "full", "out"):
        assert cell.experiment == Experiment(cell.experiment.benchmark, cell.experiment.method, cell.experiment.seed)
    for cell in cells_of("table1", "short", "out"):
        assert cell.experiment.training().epochs == min(25, cell.experiment.preset.training.epochs)
    seeds = {scale: {cell.experiment.seed for cell in cells_of("table3", scale, "out")} for scale in SCALES}
    assert {scale: sorted(found) for scale, found in seeds.items()} == {
        "full": [0, 1, 2, 3, 4],
        "short": [0, 1, 2],
        "smoke": [0],
    }


def test_values_of_eps2_are_tried_beside_the_benchmarks_own() -> None:
    found = {
        cell.directory.parts[-2]: cell.experiment.method_settings()["eps2"]
        for cell in cells_of("table4", "smoke", "out")
    }
    assert found == {"cuber": 0.0, "cuber-eps2=0.2": 0.2, "cuber-eps2=0.5": 0.5}


def test_a_choice_of_benchmarks_and_methods_leaves_the_others_out() -> None:
    cells = cells_of("table1", "smoke", "out", benchmarks=["permuted-mnist"], methods=["trgp", "hat"], data_dir="data")
    assert [cell.directory for cell in cells] == [Path("out/permuted-mnist/trgp/seed-0")]
    assert cells[0].experiment.data_dir == "data"
    with pytest.raises(CuberError, match="benchmark of table2 'permuted-mnist'"):
        cells_of("table2", "smoke", "out", benchmarks=["permuted-mnist"])
    with pytest.raises(CuberError, match="gpm is there more than once"):
        cells_of("table3", "smoke", "out", methods=["gpm", "gpm"])
    with pytest.raises(CuberError, match="method of table3 'tgrp'"):
        cells_of("table3", "smoke", "out", methods=["tgrp"])
    with pytest.raises(CuberError, match="table1 has no hat on permuted-mnist"):
        cells_of("table1", "smoke", "out", benchmarks=["permuted-mnist"], methods=["hat"])
    with pytest.raises(CuberError, match="table or figure 'table9'"):
        cells_of("table9", "smoke", "out")
    with pytest.raises(CuberError, match="scale 'tiny'"):
        cells_of("table1", "tiny", "out")


def test_the_time_needed_is_that_of_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "seconds_per_step", lambda experiment: {"gpm": 2.0, "trgp": 3.0}[experiment.method])
    few = {"tasks": 2, "train_per_task": 25, "batch_size": 10}
    experiments = [Experiment("split-digits", "gpm", seed, epochs=4, **few) for seed in range(2)]
    # Three batches in each of two tasks.
    assert seconds_needed(experiments) == 2 * 2.0 * 6 * 4
    assert seconds_needed([*experiments, Experiment("split-digits", "trgp", epochs=1, **few)]) == 96 + 3.0 * 6


@pytest.mark.parametrize("method", ["gpm", "multitask"])
def test_a_step_is_measured_on_a_few_samples(method: str) -> None:
    assert 0 < seconds_per_step(Experiment("split-digits", method, threads=1)) < 60


Command = Callable[..., tuple[int, str]]


def test_one_cell_of_the_main_table_at_the_smallest_scale(cuber: Command, tmp_path: Path) -> None:
    data, out = write_every_set(tmp_path / "data"), tmp_path / "out"
    words = ["--scale", "smoke", "--benchmarks", "permuted-mnist", "--methods", "gpm", "--jobs", "1"]
    arguments = ["reproduce", "table1", *words, "--out", str(out), "--data-dir", str(data)]
    code, printed = cuber(*arguments)
    assert code == 0, printed
    assert "table1, smoke: 1 run, 0 finished" in printed
    assert "ACC %" in printed
    assert (out / "smoke/permuted-mnist/gpm/seed-0/result.json").exists()
    code, printed = cuber(*arguments)
    assert code == 0
    assert "1 run, 1 finished" in printed


def test_runs_of_another_folder_are_shown_without_running_anything(cuber: Command, tmp_path: Path) -> None:
    for seed in range(2):
        for method in ("gpm", "cuber", "finetune"):
            made = result(method, seed, benchmark="permuted-mnist")
            write(tmp_path / "results/permuted-mnist" / method / f"seed-{seed}", made)
    source = ["--from", str(tmp_path / "results")]
    code, printed = cuber("reproduce", "table1", *source)
    assert code == 0, printed
    assert "gpm" in printed
    assert "finetune" not in printed  # which the paper's table does not have
    assert "gpm" not in cuber("reproduce", "table1", *source, "--methods", "cuber")[1]
    code, printed = cuber("reproduce", "figure-memory", *source, "--out", str(tmp_path / "drawn"))
    assert code == 0, printed
    assert (tmp_path / "drawn/permuted-mnist_memory.svg").exists()
    code, printed = cuber("reproduce", "table2", *source)
    assert code == 2
    assert "has no run of overlap-cifar100" in printed
    (tmp_path / "results/permuted-mnist/trgp/seed-0").mkdir(parents=True)
    (tmp_path / "results/permuted-mnist/trgp/seed-0/config.toml").write_text("")
    code, printed = cuber("reproduce", "figure-memory", *source, "--methods", "trgp", "--out", str(tmp_path / "none"))
    assert code == 2
    assert "nothing to show" in printed
