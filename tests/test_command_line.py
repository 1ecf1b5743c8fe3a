"""The help of every command, its options, completion, and the page that documents them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cuber.cli.help import HERE
from cuber.cli.main import app, main

PAGE = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text()
TOP = typer.main.get_command(app)
COMMANDS = {(name,): command for name, command in TOP.commands.items()} | {
    ("data", name): command for name, command in TOP.commands["data"].commands.items()
}


def names(command) -> set[str]:
    """All names of the options of a command, the earlier ones too."""
    return {name for parameter in command.params if parameter.param_type_name == "option" for name in parameter.opts}


@pytest.fixture
def help_of(capsys, monkeypatch):
    """The help that a command prints on a terminal with 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> str:
        with pytest.raises(SystemExit) as exit:
            main([*arguments, "--help"])
        assert not exit.value.code
        return capsys.readouterr().out

    return call


def test_grid_takes_all_that_run_takes() -> None:
    run, grid = (names(COMMANDS[name,]) for name in ("run", "grid"))
    assert run <= grid
    assert grid - run == {"--methods", "--seeds", "--jobs", "--on", "--retry", "--join"}


def test_every_command_that_writes_has_the_same_option_for_it() -> None:
    for name in ("run", "grid", "reproduce", "compare", "report", "theory"):
        assert {"-o", "--out"} <= names(COMMANDS[name,])
    for name in ("report", "theory"):
        assert "--output" in names(COMMANDS[name,])


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_help_fits_the_terminal(help_of, words) -> None:
    lines = help_of(*words).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 100
    assert not [line for line in lines if line.endswith("...")][1:]  # of the usage only
    assert "--output" not in "".join(lines)
    wrapped = [place for place, line in enumerate(lines) if re.match(r" {6}", line)]
    assert not [place for place in wrapped if place + 1 in wrapped]  # no text has more than two lines


def test_the_help_of_run_fits_two_screens(help_of) -> None:
    lines = help_of("run").splitlines()
    assert len(lines) <= 50
    assert not [line for line in lines if re.match(r" {6}", line)]  # no text is broken


def test_run_comes_first(help_of) -> None:
    assert help_of().partition("Commands:\n")[2].startswith("  run ")


def test_defaults_are_those_of_the_benchmark_and_method_that_are_named(help_of) -> None:
    assert "Learning rate (here: 0.05)\n" in help_of("run")
    assert "Learning rate (here: 0.01)\n" in help_of("run", "permuted-mnist")
    assert "Learning rate (here: 0.03)\n" in help_of("grid", "permuted-mnist", "--methods", "ewc")
    assert "Learning rate\n" in help_of("grid", "permuted-mnist", "split-digits")
    assert "Learning rate\n" in help_of("run", "nowhere")
    assert HERE in help_of("run")


@pytest.mark.parametrize(("line", "offered"), [("cuber re", {"reproduce", "report"}), ("cuber report --o", {"--out"})])
def test_completion(line: str, offered: set[str]) -> None:
    variables = {"_CUBER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    script = "from cuber.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_page_has_every_command_and_option(words) -> None:
    section = re.search(rf"^#+ `cuber {' '.join(words)}`\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert f"cuber {' '.join(words)}" in section[1]
    shared = "" if words != ("grid",) else PAGE.partition("## `cuber run`")[2].partition("\n## ")[0]
    for parameter in COMMANDS[words].params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            assert f"`{next(name for name in parameter.opts if name.startswith('--'))}" in section[1] + shared
