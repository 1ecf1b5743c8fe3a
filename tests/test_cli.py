"""The command line as a user meets it: what it prints, what it says to mistakes, what it leaves on disk."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from cuber import CuberError, __version__
from cuber.cli.main import main
from cuber.training.config import training_options

QUICK = ["--epochs", "1", "--tasks", "2"]


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def cuber(capsys):
    """Run a command in this process; exit code, standard output, standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main(list(arguments))
        captured = capsys.readouterr()
        return exit.value.code or 0, captured.out, captured.err

    return call


def process(*arguments: str, first: str = "", **options) -> subprocess.Popen:
    command = [sys.executable, "-c", first + "from cuber.cli.main import main; main()", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


# What it prints


@pytest.mark.parametrize("method", ["cuber", "trgp", "gpm", "finetune"])
@pytest.mark.parametrize("benchmark", ["overlap-digits", "split-digits", "permuted-digits"])
def test_every_method_on_every_benchmark(cuber, benchmark, method, tmp_path):
    code, out, err = cuber("run", benchmark, "--method", method, "--out", str(tmp_path), *QUICK)
    assert (code, err) == (0, "")
    assert re.search(r"ACC \d+\.\d\d %  BWT [+-]?\d+\.\d\d  forgetting \d+\.\d\d  time \d+\.\d s", out)
    assert ("with the task not told" in out) == (benchmark == "permuted-digits")
    assert ("Regimes" in out) == (method in ("cuber", "trgp") and "reused" in out)
    assert "\x1b" not in out
    assert "\r" not in out
    assert out.count("task 0  ") == 1
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["benchmark"] == benchmark
    assert result["method"] == method
    assert len(result["accuracy"]) == 2


@pytest.mark.parametrize("benchmark", ["overlap-digits", "permuted-digits"])
def test_all_tasks_at_once(cuber, benchmark, tmp_path):
    code, out, err = cuber("run", benchmark, "--method", "multitask", "--out", str(tmp_path), *QUICK)
    assert (code, err) == (0, "")
    assert re.match(r"all tasks  loss \d\.\d+  validation accuracy +\d+\.\d %", out)
    assert re.search(r"^ all tasks +\d+\.\d +\d+\.\d", out, re.MULTILINE)
    assert re.search(r"ACC \d+\.\d\d %  BWT -  forgetting -  time", out)
    assert ("with the task not told" in out) == (benchmark == "permuted-digits")
    result = json.loads((tmp_path / "result.json").read_text())
    assert [len(row) for row in result["accuracy"]] == [2]
    assert (result["method"], result["bwt"]) == ("multitask", None)


@pytest.mark.parametrize("benchmark", ["overlap-digits", "permuted-digits"])
def test_tables_fit_into_80_columns_untruncated(cuber, benchmark):
    _, out, _ = cuber("run", benchmark, "--epochs", "1")
    tables = out.split("ACC ")[0]
    assert max(len(line.rstrip()) for line in tables.splitlines()) <= 80
    assert "…" not in tables


def test_quiet_prints_the_figures_alone(cuber):
    _, out, _ = cuber("run", "--quiet", *QUICK)
    assert [line.split()[0] for line in out.splitlines()] == ["ACC", "ACC", "memory", "note:"]
    assert "time" in out.splitlines()[0]
    assert "with the inferred task" in out.splitlines()[1]


def test_one_task_has_no_backward_transfer(cuber):
    code, out, _ = cuber("run", "--tasks", "1", "--epochs", "1")
    assert code == 0
    assert "BWT -  forgetting -" in out


def test_list_names_everything(cuber):
    code, out, _ = cuber("list")
    assert code == 0
    for name in ("overlap-digits", "split-digits", "permuted-digits", "cuber", "trgp", "gpm", "finetune"):
        assert re.search(rf"^  {name}  ", out, re.MULTILINE)
    for setting in ("eps1", "eps2", "lam", "threshold", "samples", "uncovered"):
        assert re.search(rf"^    {setting} +\S+ +\S+", out, re.MULTILINE)
    assert "and those of trgp" in out
    assert "must hold (1: all but rounding)" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_version_and_help(cuber):
    assert cuber("--version") == (0, f"cuber {__version__}\n", "")
    code, out, _ = cuber("--help")
    assert code == 0
    assert "run" in out
    assert cuber()[1] == out
    assert "--set" in cuber("run", "--help")[1]


@pytest.mark.parametrize("command", ["run", "grid"])
def test_every_training_option_is_in_the_help_with_its_text(cuber, command):
    text = " ".join(cuber(command, "--help")[1].split())
    for name, (_, _, limits) in training_options().items():
        assert re.search(rf"--{name.replace('_', '-')} (\S+ )?{re.escape(limits.help.removesuffix('.'))}", text)
    assert "--no-compile" not in text


def test_help_does_without_torch():
    script = (
        "import sys\n"
        "from cuber.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'sklearn', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


# Options do what they say


def test_options_reach_the_run(cuber, tmp_path):
    arguments = ["--seed", "3", "--tasks", "2", "--epochs", "2", "--batch-size", "7", "--lr", "0.02"]
    settings = ["--set", "eps1=0.25", "--set", "check=step", "--set", "threshold=[0.9,0.95]"]
    code, _, _ = cuber("run", "--method", "cuber", "--out", str(tmp_path), *arguments, *settings)
    assert code == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["seed"] == 3
    assert len(result["tasks"]) == 2
    assert [len(epochs) for epochs in result["history"]] == [2, 2]
    assert (result["training"]["batch_size"], result["training"]["lr"]) == (7, 0.02)
    chosen = {name: result["settings"][name] for name in ("eps1", "check", "threshold")}
    assert chosen == {"eps1": 0.25, "check": "step", "threshold": [0.9, 0.95]}


def test_two_identical_runs_give_identical_results_apart_from_times(cuber, tmp_path):
    results = []
    for name in "ab":
        cuber("run", "--quiet", "--out", str(tmp_path / name), *QUICK)
        text = (tmp_path / name / "result.json").read_text()
        results.append(json.loads(text))
        results[-1].pop("seconds")
        for epoch in (epoch for epochs in results[-1]["history"] for epoch in epochs):
            assert epoch.pop("seconds") > 0
    assert results[0] == results[1]


def test_options_of_the_papers_benchmarks_reach_the_run(cuber, tmp_path, data_dir):
    small = ["--tasks", "1", "--epochs", "1", "--train-per-task", "12", "--test-per-task", "8"]
    loop = ["--patience", "4", "--factor", "3", "--floor", "0.001", "--evaluation-batch-size", "5"]
    where = ["--data-dir", str(data_dir), "--out", str(tmp_path)]
    code, out, _ = cuber("run", "permuted-mnist", "--method", "gpm", "--protocol", "code", *small, *loop, *where)
    assert code == 0
    result = json.loads((tmp_path / "result.json").read_text())
    training = result["training"]
    chosen = [training[name] for name in ("patience", "factor", "floor", "evaluation_batch_size")]
    assert chosen == [4, 3.0, 0.001, 5]
    assert (result["tasks"][0]["train"], result["tasks"][0]["test"]) == (12, 8)
    assert out.splitlines()[-1] == "note: " + "; ".join(result["notes"])
    assert "only 1 of 10 tasks; only 12 training samples per task" in out


def test_options_of_a_stream_reach_the_runs_of_a_grid(cuber, tmp_path, data_dir):
    small = ["--tasks", "1", "--epochs", "1", "--train-per-task", "12", "--test-per-task", "8"]
    where = ["--data-dir", str(data_dir), "--out", str(tmp_path)]
    code, out, _ = cuber(
        "grid", "five-datasets", "--mnist-twice", "--methods", "finetune", "--seeds", "3", *small, *where
    )
    assert code == 0, out
    directory = tmp_path / "five-datasets-mnist_twice=True" / "finetune" / "seed-3"
    assert "MNIST in the place of Fashion-MNIST" in json.loads((directory / "result.json").read_text())["notes"]


def test_data_lists_the_datasets(cuber, data_dir):
    code, out, _ = cuber("data", "--data-dir", str(data_dir))
    assert code == 0
    assert out.count("present") == 7


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "overlap-digit"], r"there is no benchmark 'overlap-digit'; did you mean 'overlap-digits'\?"),
        (["run", "--method", "cubr"], r"there is no method 'cubr'; did you mean 'cuber'\?"),
        (["run", "--method", "cubr", "--set", "eps1=1"], "there is no method 'cubr'"),
        (["run", "--set", "epz1=0.5"], r"there is no setting of CUBER 'epz1'; did you mean 'eps1'\?"),
        (["run", "--method", "finetune", "--set", "lam=1"], "there is no setting of FineTune 'lam'"),
        (["run", "--set", "eps1"], "--set takes name=value, not 'eps1'"),
        (["run", "--set", "threshold="], "--set takes name=value, not 'threshold='"),
        (["run", "--set", "eps1=1", "--set", "eps1=2"], "--set has two values for eps1, '1' and '2': give it one"),
        (["run", "--set", "eps1=-1"], "eps1 must be a number of at least 0, not -1"),
        (["run", "--set", "lam=-0.5"], "lam must be a number of at least 0, not -0.5"),
        (["run", "--set", "lam=much"], "lam must be a number of at least 0, not 'much'"),
        (["run", "--set", "lam=1e999"], "lam must be a number of at least 0, not inf"),
        (["run", "--set", "lam=" + "9" * 400], "lam must be a number of at least 0, not 9999"),
        (["run", "--set", "lam=" + "-" * 20000 + "1"], "lam must be a number of at least 0"),
        (["run", "--set", "threshold={[]:1}"], "threshold must be a number from 0 to 1"),
        (
            ["run", "--set", "threshold={1:0.9}"],
            r"threshold has no value for layer 'backbone\.layers\.0' \(it names 1\)",
        ),
        (["run", "--set", "threshold=[[0.9],[0.8]]"], r"threshold must be a number from 0 to 1, not \[0\.9\]"),
        (["run", "--batch-size", "9" * 26], "batch_size must be a whole number of at least 1"),
        (["run", "--threads", "99999999999999"], "threads must be a whole number from 1 to 1024"),
        (["run", "--set", "threshold=[0.9]"], "threshold has 1 values, but the model has 2 protected layers"),
        (["run", "--tasks", "6"], "overlap-digits has 5 tasks: choose 1 to 5, not 6"),
        (["run", "--tasks", "0"], "choose 1 to 5, not 0"),
        (["run", "--epochs", "0"], "epochs must be a whole number of at least 1, not 0"),
        (["run", "--epochs", "many"], "--epochs"),
        (["run", "--batch-size", "0"], "batch_size must be a whole number of at least 1"),
        (["run", "--lr", "-1"], "lr must be a number above 0 and at most .*, not -1"),
        (["run", "--lr", "1e308"], "lr must be a number above 0 and at most .*, not 1e"),
        (["run", "--lr", "nan"], "lr must be a number above 0 and at most .*, not nan"),
        (["run", "--seed", "-1"], "seed must be a whole number from 0"),
        (["run", "--seed", "99999999999999999999"], "seed must be a whole number from 0"),
        (["run", "--patience", "-1"], "patience must be a whole number of at least 0, not -1"),
        (["run", "--train-per-task", "0"], "train_per_task must be a whole number of at least 1"),
        (["run", "--protocol", "papper"], r"there is no protocol .*'papper'; did you mean 'paper'\?"),
        (["run", "five-datasets", "--order", "odd"], "there is no order 'odd'"),
        (["run", "split-cifar100", "--mnist-twice"], "split-cifar100 has no option 'mnist_twice'"),
        (["run", "split-cifar100", "--data-dir", "."], "cifar-100: .*is missing.*cuber data get cifar-100"),
        (["data", "get", "minst"], r"there is no dataset 'minst'; did you mean 'mnist'\?"),
        (["data", "fetch"], "fetch"),
        (["run", "--threads", "0"], "threads must be a whole number from 1 to 1024"),
        (["run", "--lr", "1e30"], r"task 0 \('digits 0-3'\), epoch 1, step \d: the loss is (nan|inf)"),
        (["rum"], "'rum'.*[dD]id you mean 'run'"),
        (["run", "--sed", "1"], "--sed.*--seed"),
        (["run", "overlap-digits", "twice"], "twice"),
        (["--out"], "--out"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(cuber, arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = cuber(*arguments, *(["--out", "results/here"] if arguments[0] == "run" else []))
    assert code == 2
    assert re.fullmatch(rf"cuber: .*{sentence}.*\n", err)
    assert os.listdir(tmp_path) == []


def test_out_must_be_a_place_to_write_to(cuber, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("kept")
    for out in (tmp_path / "file", tmp_path / "file" / "below", "/proc/none", "x" * 300, ""):
        code, printed, err = cuber("run", "--out", str(out), *QUICK)
        assert (code, printed) == (2, "")
        assert re.fullmatch(r"cuber: (cannot write to|--out takes a directory).*\n", err)
    monkeypatch.chdir(tmp_path)
    code, printed, err = cuber("grid", "split-digits", "--out", "", *QUICK)
    assert (code, printed) == (2, "")
    assert err.startswith("cuber: --out takes a directory")
    assert os.listdir() == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_another_run_is_not_written_over_unless_asked(cuber, tmp_path):
    assert cuber("run", "--out", str(tmp_path), *QUICK)[0] == 0
    before = (tmp_path / "result.json").read_text()
    code, out, err = cuber("run", "--out", str(tmp_path), "--seed", "1", *QUICK)
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"cuber: .* holds a run with another configuration: experiment.seed was 0 and is now 1; .*\n", err
    )
    assert (tmp_path / "result.json").read_text() == before
    assert cuber("run", "--out", str(tmp_path), "--seed", "1", "--fresh", *QUICK)[0] == 0
    assert json.loads((tmp_path / "result.json").read_text())["seed"] == 1


def test_a_finished_run_is_shown_again_and_not_made_again(cuber, tmp_path):
    first = cuber("run", "--out", str(tmp_path), "--quiet", *QUICK)
    files = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = cuber("run", "--out", str(tmp_path), "--quiet", *QUICK)
    assert again == (0, f"{tmp_path} holds this run already; --fresh starts it over\n\n{first[1]}", "")
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files


def test_files_of_others_are_left_alone(cuber, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for fresh in ([], ["--fresh"]):
        code, _, err = cuber("run", "--out", str(tmp_path), *fresh, *QUICK)
        assert (code, err) == (
            2,
            f"cuber: {tmp_path} holds files that are not those of a run: choose another directory\n",
        )
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize("option", [["--fresh"], ["--checkpoint-every", "1"], ["--log", "tensorboard"]])
def test_options_of_the_directory_need_one(cuber, option):
    code, _, err = cuber("run", *option, *QUICK)
    assert (code, err) == (2, f"cuber: {option[0]} needs a run directory: name one with --out\n")


def test_a_result_that_can_no_longer_be_written_is_shown_all_the_same(cuber, tmp_path, monkeypatch):
    from cuber.training import Result

    def full(self, directory):
        raise CuberError("cannot write: No space left on device")

    monkeypatch.setattr(Result, "save", full)
    code, out, err = cuber("run", "--out", str(tmp_path), *QUICK)
    assert code == 2
    assert "ACC" in out
    assert err == "cuber: cannot write: No space left on device\n"


INTERRUPTS_ITSELF = """
import os, signal
from cuber.report.live import Lines

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have us ignore it, in the background
Lines.__call__ = lambda *_: os.kill(os.getpid(), signal.SIGINT)
"""
"""From outside, a signal could come after a fast run has ended."""


def test_interrupted_with_nothing_kept():
    _, err = (running := process("run", first=INTERRUPTS_ITSELF)).communicate(timeout=300)
    assert (running.returncode, err) == (130, "cuber: interrupted\n")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_interrupted_and_gone_on_with(cuber, tmp_path, name, code):
    first = INTERRUPTS_ITSELF.replace("SIGINT", name)
    quick = ["--epochs", "2", "--tasks", "2"]
    running = process("run", "--out", str(tmp_path), *quick, first=first)
    _, err = running.communicate(timeout=300)
    assert running.returncode == code
    assert (
        err == "cuber: stopped in task 0 ('digits 0-3'), epoch 2, before step 1; the same command or call resumes it\n"
    )
    assert not (tmp_path / "result.json").exists()
    assert cuber("run", "--out", str(tmp_path), *quick)[0] == 0
    assert cuber("run", "--out", str(tmp_path / "undisturbed"), *quick)[0] == 0
    resumed, undisturbed = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("", "undisturbed"))
    assert resumed["accuracy"] == undisturbed["accuracy"]


def test_real_bugs_are_not_hidden(monkeypatch):
    def broken(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr("cuber.experiments.run", broken)
    with pytest.raises(KeyError, match="a bug"):
        main(["run"])
