"""The command line: parse, call, print. Whatever imports torch is imported by the command that needs it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuber.cli import compare as compare_cli
from cuber.cli import data as data_cli
from cuber.cli import grid as grid_cli
from cuber.cli import report as report_cli
from cuber.cli import theory as theory_cli
from cuber.cli.data import DataDir
from cuber.core.allocation import keep_freed_memory
from cuber.core.encoding import replace_unencodable
from cuber.errors import CuberError
from cuber.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from cuber.training import RunDirectory


INTERRUPTED = 130

app = typer.Typer(
    help="Continual learning with backward knowledge transfer.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data_cli.app, name="data")
app.command()(grid_cli.grid)
app.command()(compare_cli.compare)
app.command()(report_cli.report)
app.command()(theory_cli.theory)


@app.callback(invoke_without_command=True)
def cuber(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False,
) -> None:
    if version:
        print(f"cuber {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def run(
    benchmark: Annotated[str, typer.Argument(help="What to learn; see cuber list.")] = "overlap-digits",
    method: Annotated[str, typer.Option(help="How to learn it; see cuber list.")] = "cuber",
    seed: Annotated[int, typer.Option(help="Decides the data, the first weights and the order.")] = 0,
    tasks: Annotated[int | None, typer.Option(help="Learn only the first so many tasks.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over each task's training data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step.")] = None,
    lr: Annotated[float | None, typer.Option(help="The learning rate.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Epochs without a better validation loss until lr is divided; 0: never.")
    ] = None,
    factor: Annotated[float | None, typer.Option(help="What lr is then divided by.")] = None,
    floor: Annotated[float | None, typer.Option(help="The task is over when lr falls below this.")] = None,
    evaluation_batch_size: Annotated[int | None, typer.Option(help="Samples at a time in tests.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16: forward passes in bfloat16; else float32.")] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the forward pass of the steps, with torch.compile.")
    ] = False,
    train_per_task: Annotated[int | None, typer.Option(help="At most so many training samples.")] = None,
    test_per_task: Annotated[int | None, typer.Option(help="At most so many test samples.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="paper or code where the two differ; for the digits, usual or paper.")
    ] = None,
    order: Annotated[str | None, typer.Option(help="paper or code: the order of five-datasets' tasks.")] = None,
    mnist_twice: Annotated[
        bool, typer.Option("--mnist-twice", help="five-datasets with MNIST in the place of Fashion-MNIST.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Keep the run there; the same command again goes on where it stopped."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, whatever is there.")] = False,
    checkpoint_every: Annotated[
        int | None, typer.Option(metavar="EPOCHS", help="How often to save; else about once a minute.")
    ] = None,
    log: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Log to tensorboard, wandb or mlflow too.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads for torch.")] = None,
    data_dir: DataDir = None,
    theory: Annotated[
        bool, typer.Option("--theory", help="Record how far the theorems' conditions are met; only with cuber.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the figures at the end.")] = False,
) -> None:
    """Learn a benchmark's tasks one after another, and show what became of the old ones."""
    console = _console()
    keep_freed_memory()
    from cuber.core.settings import parse_settings, read_value
    from cuber.experiments import Experiment
    from cuber.experiments import run as run_experiment
    from cuber.report import Bars, Lines, show_result, show_summary
    from cuber.training import Stopped, UnwrittenResultError

    experiment = Experiment(
        benchmark=benchmark,
        method=method,
        seed=seed,
        tasks=tasks,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        settings={name: read_value(text) for name, text in parse_settings(settings or []).items()},
        threads=threads,
        patience=patience,
        factor=factor,
        floor=floor,
        evaluation_batch_size=evaluation_batch_size,
        precision=precision,
        compile=compile,
        train_per_task=train_per_task,
        test_per_task=test_per_task,
        protocol=protocol,
        options=({"order": order} if order else {}) | ({"mnist_twice": True} if mnist_twice else {}),
        data_dir=data_dir,
    )
    directory = _directory(out, fresh, checkpoint_every, log or [])
    show = show_summary if quiet else show_result
    try:
        if quiet:
            result = run_experiment(experiment, directory, theory=theory)
        else:
            with (Bars if console.is_terminal else Lines)(console) as progress:
                result = run_experiment(experiment, directory, progress, theory=theory)
    except Stopped as stopped:
        print(f"cuber: {stopped}", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except UnwrittenResultError as error:
        show(error.result, console)  # what was learnt is shown even where it could not be written
        raise
    if directory is not None and directory.was_finished:
        lacks = ", without what --theory records" if theory and not result.theory else ""
        console.print(f"{out} holds this run already{lacks}; --fresh starts it over\n", soft_wrap=True, markup=False)
    show(result, console)


@app.command(name="list")
def list_() -> None:
    """List the benchmarks, and the methods with their settings."""
    from cuber.experiments import catalogue
    from cuber.report import show_catalogue

    show_catalogue(catalogue.benchmarks(), catalogue.methods(), _console())


def main(arguments: list[str] | None = None) -> None:
    """The entry point: what the user can put right is answered with one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        replace_unencodable(stream)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"cuber: warning: {message}", file=sys.stderr)
        try:
            code = app(arguments, prog_name="cuber", standalone_mode=False)
        except CuberError as error:
            code = _complain(str(error))
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except OSError as error:
            code = _complain(f"cannot read or write {error.filename or 'the output'}: {error.strerror or error}")
        except Exception as error:
            # What typer says about options and commands; the classes have moved from version to version.
            if not hasattr(error, "format_message"):
                raise
            code = _complain(error.format_message())
    if code == INTERRUPTED:
        print("cuber: interrupted", file=sys.stderr)
    sys.exit(code)


def _complain(sentence: str) -> int:
    print(f"cuber: {' '.join(sentence.split())}", file=sys.stderr)
    return 2


def _console() -> Console:
    from rich.console import Console

    return Console()


def _directory(out: str | None, fresh: bool, checkpoint_every: int | None, loggers: list[str]) -> RunDirectory | None:
    """Where the run is kept, if anywhere."""
    if out is None:
        for option, given in (("--fresh", fresh), ("--checkpoint-every", checkpoint_every), ("--log", loggers)):
            if given:
                raise CuberError(f"{option} is about the directory of a run: name one with --out")
        return None
    if not out:
        raise CuberError("--out takes a directory, and '' is none")
    from cuber.loggers import make_logger
    from cuber.training import RunDirectory

    path = Path(out)
    made = [make_logger(name, path) for name in loggers]
    return RunDirectory(path, checkpoint_every=checkpoint_every, fresh=fresh, loggers=made)
