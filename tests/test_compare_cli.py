"""``cuber compare`` as a user meets it."""

from __future__ import annotations

import json
import re

import pytest

from cuber.cli.main import main
from tests.made_up import result, shifted, write


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def cuber(capsys):
    """Run a command in this process; exit code, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main(list(map(str, arguments)))
        captured = capsys.readouterr()
        return exit.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def runs(tmp_path):
    """Three seeds of two methods, and one run that goes on."""
    for seed in range(3):
        write(tmp_path / f"trgp-{seed}", result("trgp", seed, accuracy=shifted(seed, 0)))
        write(tmp_path / f"cuber-{seed}", result("cuber", seed, accuracy=shifted(2.5 * seed, 0.1)))
    write(tmp_path / "cuber-3", config='[experiment]\nbenchmark = "made-up"\nmethod = "cuber"\nseed = 3\n')
    return tmp_path


def test_tables_and_what_is_not_in_them(cuber, runs):
    code, out, err = cuber("compare", runs)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "trgp 3 81.00±1.00 0.00±0.00" in lines
    assert "cuber 3 82.50±2.50 +0.10±0.00" in lines
    assert "Differences to trgp with the same seeds on made-up" in lines
    assert "(cuber on made-up, seed 3): stopped, 0 tasks learned" in " ".join(lines[-2:])
    assert max(len(line.rstrip()) for line in out.split("Not counted")[0].splitlines()) <= 80


def test_runs_can_be_named_one_by_one(cuber, runs):
    _, out, _ = cuber("compare", runs / "trgp-0", runs / "trgp-2", "--table", "acc", "--format", "csv")
    assert out.splitlines()[1].startswith("made-up,trgp,2,81.0,1.41")


def test_options_do_what_they_say(cuber, runs):
    options = ["--against", "cuber", "--table", "differences", "--table", "time", "--format", "json"]
    code, out, _ = cuber("compare", runs, *options)
    values = json.loads(out)
    assert code == 0
    assert [table["table"] for table in values["tables"]] == ["differences", "time"]
    assert values["tables"][0]["rows"][0]["acc_difference"] == -1.5
    assert len(values["unfinished"]) == 1


def test_with_several_to_compare_with_one_must_be_named(cuber, runs):
    for seed in range(2):
        other = result("trgp", seed, training={"epochs": 9, "lr": 0.01, "batch_size": 10})
        write(runs / f"longer-{seed}", other)
    code, _, err = cuber("compare", runs, "--table", "differences")
    assert code == 2
    assert err.endswith("there is more than one trgp to compare with; name a variant with --against\n")
    assert cuber("compare", runs, "--table", "differences", "--against", "trgp epochs=9")[0] == 0


def test_csv_on_one_channel_and_remarks_on_the_other(cuber, runs):
    code, out, err = cuber("compare", runs, "--table", "acc", "--format", "csv")
    assert code == 0
    assert len(out.splitlines()) == 4
    assert "not counted" in err


@pytest.mark.parametrize("form", ["table", "markdown", "latex", "csv", "json"])
def test_a_damaged_run_does_not_hide_the_others(cuber, runs, form):
    (runs / "cuber-0" / "result.json").write_text("{")
    code, out, err = cuber("compare", runs, "--format", form)
    assert code == 0
    assert "cuber-0/result.json is damaged" in out + err


def test_a_name_means_nothing_where_nothing_has_finished(cuber, tmp_path):
    code, _, err = cuber(
        "compare", write(tmp_path / "a", config="[experiment]"), "--against", "trgp", "--table", "time"
    )
    assert (code, err) == (2, "cuber: there is no finished run, so there is nothing to compare: 1 not finished\n")


def test_where_nothing_has_finished_there_is_nothing_to_compare(cuber, tmp_path):
    write(tmp_path / "a", config="[experiment]")
    write(tmp_path / "b", result_json="{")
    code, out, err = cuber("compare", tmp_path)
    assert code == 2
    assert err == "cuber: there is no finished run, so there is nothing to compare: 1 not finished, 1 damaged\n"
    assert f"{tmp_path / 'a'}: stopped, 0 tasks learned" in out
    assert f"{tmp_path / 'b' / 'result.json'} is damaged" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "directory nowhere does not exist"),
        ([""], "the name of a directory of runs is empty"),
        (["."], "there is no run in .: neither config.toml nor result.json, in it or below it"),
        ([], "Missing argument 'DIR'"),
        (["runs", "--format", "yaml"], "there is no format 'yaml' (known: table, markdown, latex, csv, json)"),
        (["runs", "--table", "acd"], "there is no table 'acd'; did you mean 'acc'?"),
        (["runs", "--against", "gpm"], "there is no variant 'gpm'"),
        (
            ["runs", "--table", "sweep"],
            "table 'sweep' cannot be made of these runs: it needs runs of one method",
        ),
        (
            ["runs/trgp-0", "runs/cuber-0", "--table", "acc", "--table", "differences"],
            "table 'differences' cannot be made of these runs: it needs two seeds of the variant that "
            "--against names (default: trgp) and of another",
        ),
        (
            ["runs/cuber-0", "runs/cuber-1", "--table", "acc", "--table", "differences"],
            "table 'differences' cannot be made of these runs: there is no trgp to compare with; name a variant "
            "with --against",
        ),
    ],
)
def test_mistakes_are_answered_with_a_sentence(cuber, runs, tmp_path_factory, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    code, out, err = cuber("compare", *(re.sub("^runs", str(runs), word) for word in arguments))
    assert (code, out) == (2, "")
    assert err.startswith(f"cuber: {sentence}")
    assert err.count("\n") == 1
