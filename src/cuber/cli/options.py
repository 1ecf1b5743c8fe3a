"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from cuber.training.config import training_options

Command = TypeVar("Command", bound=Callable[..., None])

Tasks = Annotated[int | None, typer.Option(help="Number of tasks to run (default: all).")]
TrainPerTask = Annotated[int | None, typer.Option(help="Maximum number of training samples per task.")]
TestPerTask = Annotated[int | None, typer.Option(help="Maximum number of test samples per task.")]
Protocol = Annotated[
    str | None, typer.Option(help="paper or code, where the two differ; for the digits, usual or paper.")
]
DataDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="Datasets directory (default: CUBER_DATA, or the user's cache).")
]


def with_training_options(names: Sequence[str] = (), *, after: str) -> Callable[[Command], Command]:
    """Add training options to a command that takes them as ``**training``; the value of those not given is None.

    Args:
        names: The options to add; empty: all of TrainingConfig.
        after: The parameter behind which ``--help`` lists them.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        place = [p.name for p in parameters].index(after) + 1
        parameters[place:place] = [_parameter(name) for name in names or training_options()]
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return command

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    kind, _, limits = training_options()[name]
    flag = [f"--{name.replace('_', '-')}"] if kind is bool else []  # without --no-...
    annotation: Any = Annotated[kind | None, typer.Option(*flag, help=limits.help)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
