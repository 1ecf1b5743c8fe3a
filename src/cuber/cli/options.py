"""Options of the command line that several commands have, each declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from cuber.cli.help import DIRECTORY, EXPERIMENT, MACHINE, OF_BENCHMARK, STREAM, TRAINING
from cuber.training.config import training_options

Command = TypeVar("Command", bound=Callable[..., None])


def option(default: Any, *names: str, group: str | None = None, metavar: str = "N", help: str, **more: Any) -> Any:
    """An option in a group of the help."""
    return typer.Option(default, *names, metavar=metavar, help=help, rich_help_panel=group, **more)


def out(
    default: str | None, metavar: str, help: str, group: str | None = None, *, earlier: tuple[str, ...] = ()
) -> Any:
    """``-o/--out``, with the names that it had in earlier versions."""
    return option(default, "--out", "-o", *earlier, metavar=metavar, help=help, group=group)


DATA_DIR: Any = option(None, group=MACHINE, metavar="DIR", help="Datasets.", show_default="CUBER_DATA or the cache")
THREADS: Any = option(None, group=MACHINE, help="Threads for torch.", show_default=OF_BENCHMARK)
AGAINST: Any = option(None, metavar="NAME", help="Variant to test others against.", show_default="trgp")

SIZE: dict[str, tuple[type, Any]] = {
    "protocol": (
        str,
        option(None, group=EXPERIMENT, metavar="NAME", help="paper, code or usual.", show_default=OF_BENCHMARK),
    ),
    "tasks": (int, option(None, group=EXPERIMENT, help="Number of tasks to learn.", show_default="all")),
    "train_per_task": (
        int,
        option(None, group=EXPERIMENT, help="Training samples per task, at most.", show_default="all"),
    ),
    "test_per_task": (int, option(None, group=EXPERIMENT, help="Test samples per task, at most.", show_default="all")),
    "boundaries": (
        str,
        option(None, group=EXPERIMENT, metavar="NAME", help="detect: find where tasks begin.", show_default="told"),
    ),
}
STREAM_OPTIONS: dict[str, tuple[type, Any]] = {
    "images": (
        str,
        option(
            None,
            group=STREAM,
            metavar="NAME",
            help="overlap-cifar100: same or other.",
            show_default="same",
        ),
    ),
    "train_per_class": (
        int,
        option(None, group=STREAM, help="overlap-fashion: images per class.", show_default="30"),
    ),
    "order": (
        str,
        option(None, group=STREAM, metavar="NAME", help="five-datasets: paper or code.", show_default="code"),
    ),
    "mnist_twice": (
        bool,
        option(None, "--mnist-twice", group=STREAM, help="five-datasets: MNIST instead of Fashion-MNIST."),
    ),
}
"""Options of the streams of some benchmarks."""
MACHINES: dict[str, tuple[type, Any]] = {
    "data_dir": (str, DATA_DIR),
    "workers": (
        int,
        option(None, group=MACHINE, min=0, help="Processes that read images.", show_default="0: this one"),
    ),
}
RECORDING: dict[str, tuple[type, Any]] = {
    "checkpoint_every": (
        int,
        option(None, group=DIRECTORY, metavar="N", help="Epochs between checkpoints.", show_default="1 minute"),
    ),
    "log": (
        list[str],
        option([], group=DIRECTORY, metavar="NAME", help="Also log to tensorboard, wandb or mlflow."),
    ),
    "theory": (bool, option(False, "--theory", group=DIRECTORY, help="Record the theorems' conditions (cuber only).")),
}
"""What a run writes besides its result."""


def _training() -> dict[str, tuple[type, Any]]:
    """The options of TrainingConfig."""
    options = {}
    for name, (kind, _, limits) in training_options().items():
        flag = [f"--{name.replace('_', '-')}"] if kind is bool else []  # without --no-...
        metavar = {int: "N", float: "X"}.get(kind, "NAME")
        declared = option(None, *flag, group=TRAINING, metavar=metavar, help=limits.help, show_default=OF_BENCHMARK)
        options[name] = (kind, declared)
    return options


SHARED = SIZE | _training() | STREAM_OPTIONS | RECORDING | MACHINES
"""All options that ``run`` and ``grid`` share."""


def with_shared_options(command: Command) -> Command:
    """Add ``SHARED`` to a command that takes them as ``**options``."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, (kind, declared) in SHARED.items():
        annotation = kind if kind is list[str] else kind | None
        parameters.append(parameters[0].replace(name=name, default=declared, annotation=annotation))
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return command


def recording_of(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of ``RECORDING`` out of those that were given."""
    return {name: options.pop(name) for name in RECORDING}


def fields_of(options: dict[str, Any]) -> dict[str, Any]:
    """The other options that were given, as fields of an Experiment."""
    given = {name: value for name, value in options.items() if value is not None}
    of_stream = {name: given.pop(name) for name in STREAM_OPTIONS if name in given}
    return given | ({"options": of_stream} if of_stream else {})
