"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from cuber.training.config import training_options

Command = TypeVar("Command", bound=Callable[..., None])

DATA_DIR: Any = typer.Option(None, metavar="DIR", help="Datasets directory (default: CUBER_DATA, or the user's cache).")
FIELDS: dict[str, tuple[type, Any]] = {
    "tasks": (int, typer.Option(None, help="Number of tasks to run (default: all).")),
    "train_per_task": (int, typer.Option(None, help="Maximum number of training samples per task.")),
    "test_per_task": (int, typer.Option(None, help="Maximum number of test samples per task.")),
    "protocol": (str, typer.Option(None, help="paper or code, where they differ; for the digits, usual or paper.")),
    "data_dir": (str, DATA_DIR),
}
"""Fields of an Experiment that are options of every command that runs some."""


def with_experiment_options(*training: str) -> Callable[[Command], Command]:
    """Add ``FIELDS`` and training options (default: all) to a command that takes them as ``**fields``."""
    added = dict(FIELDS)
    for name in training or training_options():
        kind, _, limits = training_options()[name]
        flag = [f"--{name.replace('_', '-')}"] if kind is bool else []  # without --no-...
        added[name] = kind, typer.Option(None, *flag, help=limits.help)

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for name, (kind, option) in added.items():
            parameters.append(parameters[0].replace(name=name, default=option, annotation=kind | None))
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return command

    return decorate
