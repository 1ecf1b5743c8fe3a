"""``cuber run`` and ``cuber grid``, and the options that they share."""

from __future__ import annotations

import dataclasses
import inspect
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from cuber.core.allocation import keep_freed_memory
from cuber.errors import CuberError
from cuber.training.config import training_options

if TYPE_CHECKING:
    import torch

    from cuber.experiments.grid import Cell

Command = TypeVar("Command", bound=Callable[..., None])

DATA_DIR: Any = typer.Option(None, metavar="DIR", help="Datasets directory (default: CUBER_DATA, or the user's cache).")
DEVICE: Any = typer.Option(None, help="cpu, cuda, cuda:1, mps, or auto for the best one there is (default: cpu).")
FIELDS: dict[str, tuple[type, Any]] = {
    "tasks": (int, typer.Option(None, help="Number of tasks to run (default: all).")),
    "train_per_task": (int, typer.Option(None, help="Maximum number of training samples per task.")),
    "test_per_task": (int, typer.Option(None, help="Maximum number of test samples per task.")),
    "protocol": (str, typer.Option(None, help="paper or code, where they differ; for the digits, usual or paper.")),
    "data_dir": (str, DATA_DIR),
    "workers": (int, typer.Option(None, min=0, help="Processes that read images from disk (default: 0, this one).")),
}
"""Fields of an Experiment that are options of every command that runs some."""
STREAM_OPTIONS: dict[str, tuple[type, Any]] = {
    "images": (str, typer.Option(None, help="same or other: images of classes that tasks of overlap-cifar100 share.")),
    "train_per_class": (int, typer.Option(None, help="Training images per class of overlap-fashion (default: 30).")),
    "order": (str, typer.Option(None, help="paper or code: the order of five-datasets' tasks.")),
    "mnist_twice": (
        bool,
        typer.Option(None, "--mnist-twice", help="five-datasets with MNIST instead of Fashion-MNIST."),
    ),
}
"""Options of the streams of some benchmarks."""


def with_experiment_options(*training: str) -> Callable[[Command], Command]:
    """Add ``FIELDS``, stream and training options (default: all) to a command that takes them as ``**fields``."""
    added = FIELDS | STREAM_OPTIONS
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


def chosen_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given as fields of an Experiment."""
    given = {name: value for name, value in fields.items() if value is not None}
    options = {name: given.pop(name) for name in STREAM_OPTIONS if name in given}
    return given | ({"options": options} if options else {})


@with_experiment_options()
def run(
    benchmark: str = typer.Argument("overlap-digits", help="Benchmark to learn; see cuber list."),
    method: str = typer.Option("cuber", help="Method; see cuber list."),
    seed: int = typer.Option(0, help="Seed of the data, the initial weights and the order of samples."),
    settings: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="Hyper-parameter of the method; may be repeated."
    ),
    out: str | None = typer.Option(None, metavar="DIR", help="Run directory; the same command resumes a stopped run."),
    fresh: bool = typer.Option(False, "--fresh", help="Start over, and replace the run that is there."),
    checkpoint_every: int | None = typer.Option(
        None, metavar="EPOCHS", help="Epochs between checkpoints (default: about one minute)."
    ),
    log: list[str] = typer.Option([], metavar="NAME", help="Also log to tensorboard, wandb or mlflow."),
    threads: int | None = typer.Option(None, help="Number of threads for torch."),
    device: str | None = DEVICE,
    theory: bool = typer.Option(
        False, "--theory", help="Record how far the theorems' conditions are met (cuber only)."
    ),
    quiet: bool = typer.Option(False, "--quiet", help="Print only the metrics at the end."),
    **fields: Any,
) -> None:
    """Learn the tasks of a benchmark one after another, and show the accuracy on all of them after each."""
    from rich.console import Console

    keep_freed_memory()
    from cuber.core import distributed
    from cuber.core.settings import parse_settings, read_value
    from cuber.experiments import Experiment
    from cuber.experiments import run as run_experiment
    from cuber.loggers import make_logger
    from cuber.report import Bars, Lines, show_result, show_summary
    from cuber.training import RunDirectory, Stopped, UnwrittenResultError

    is_first = not distributed.rank_from_environment()  # of the processes that torchrun starts, one reports
    console = Console(quiet=not is_first)
    if not is_first:
        warnings.simplefilter("ignore")
    chosen = {name: read_value(text) for name, text in parse_settings(settings).items()}
    fields.update(threads=threads, device=device)
    experiment = Experiment(benchmark, method, seed, settings=chosen, **chosen_fields(fields))
    directory = None
    if out is None:
        for option, value in (("--fresh", fresh), ("--checkpoint-every", checkpoint_every), ("--log", log)):
            if value:
                raise CuberError(f"{option} needs a run directory: name one with --out")
    elif not out:
        raise CuberError("--out takes a directory, and '' is none")
    else:
        loggers = [make_logger(name, Path(out)) for name in log if is_first]
        directory = RunDirectory(out, checkpoint_every=checkpoint_every, fresh=fresh, loggers=loggers)
    show = show_summary if quiet else show_result
    live: Any = nullcontext() if quiet else Bars(console) if console.is_terminal else Lines(console)
    try:
        with distributed.group_from_environment(), live as progress:
            result = run_experiment(experiment, directory, progress, theory=theory)
    except Stopped as stopped:
        if is_first:
            print(f"cuber: {stopped}", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except UnwrittenResultError as error:
        show(error.result, console)
        raise
    if directory is not None and directory.was_finished:
        lacks = ", without what --theory records" if theory and not result.theory else ""
        console.print(f"{out} holds this run already{lacks}; --fresh starts it over\n", soft_wrap=True, markup=False)
    show(result, console)


@with_experiment_options("epochs")
def grid(
    context: typer.Context,
    what: list[str] = typer.Argument(metavar="BENCHMARK...", help="Benchmarks to learn; or one TOML file."),
    methods: str | None = typer.Option(None, help="Methods, as in cuber,trgp,gpm (default: cuber)."),
    seeds: str | None = typer.Option(None, help="Seeds, as in 0-4 or 0,2,5 (default: 0-4)."),
    out: str = typer.Option("runs", metavar="DIR", help="Directory of the run directories."),
    jobs: int | None = typer.Option(None, min=1, help="Number of runs at a time (default: 1; with --on: all)."),
    threads: int | None = typer.Option(
        None, help="Threads of each new run (default: cores divided by jobs; with --on: 1)."
    ),
    device: str | None = typer.Option(
        None, help="As for cuber run; several, as in cuda:0,cuda:1, share the runs, and cuda means all GPUs."
    ),
    settings: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE,...", help="Hyper-parameter of the methods that have it; each value is tried."
    ),
    retry: bool = typer.Option(False, "--retry", help="Also run those that have failed before."),
    fresh: bool = typer.Option(False, "--fresh", help="Start all of them over."),
    on: str | None = typer.Option(
        None, metavar="ENGINE", help="Run on dask://HOST:PORT, ray://HOST:PORT, ray or slurm (default: here)."
    ),
    join: bool = typer.Option(False, "--join", help="Share the runs with other processes that have the same --out."),
    **fields: Any,
) -> None:
    """Run every combination of methods, seeds and settings; the same command resumes unfinished runs."""
    from cuber.core import distributed
    from cuber.core.device import check_name, find_devices
    from cuber.experiments.campaign import FAILED, REFUSED, STOPPED
    from cuber.experiments.grid import grid as make_grid
    from cuber.experiments.grid import numbers, read_grid

    if distributed.rank_from_environment() is not None:
        raise CuberError("cuber grid starts processes of its own: call it without torchrun, or use cuber run")
    if not out:
        raise CuberError("--out takes a directory, and '' is none")
    if fresh and (on is not None or join):
        raise CuberError("--fresh needs the runs for itself, without --on and --join: choose another --out instead")
    if on is not None:
        out = os.path.abspath(out)  # other machines have other working directories
        if fields.get("data_dir"):
            fields["data_dir"] = os.path.abspath(fields["data_dir"])
    fixed = chosen_fields(fields)
    if len(what) == 1 and what[0].endswith(".toml"):
        several = {"methods": methods, "seeds": seeds, "settings": settings or None}
        also = [*(name for name, value in several.items() if value is not None), *fixed]
        if also:
            raise CuberError(f"with a grid file, set {', '.join(also)} in the file")
        cells = read_grid(what[0], out)
    else:
        # An empty text, as from an unset variable of a shell, is not replaced by the default.
        methods, seeds = "cuber" if methods is None else methods, "0-4" if seeds is None else seeds
        cells = make_grid(out, what, methods.split(","), numbers(seeds), _values(settings), **fixed)
    if device is not None:
        for name in device.split(","):
            check_name(name.strip())
    if on == "slurm":
        with_threads(cells, 1, threads)  # refuses what the array would refuse
        submit_grid(context, Path(out), len(cells))
        return
    cells = with_threads(cells, (jobs or 1) if on is None else os.cpu_count() or 1, threads)
    devices = find_devices(device) if device is not None and on is None else []
    if device is not None and on is not None:  # workers find their own
        cells = [dataclasses.replace(c, experiment=dataclasses.replace(c.experiment, device=device)) for c in cells]
    states = run_cells(cells, Path(out), jobs, retry=retry, fresh=fresh, devices=devices, on=on, join=join)
    if STOPPED in states:
        sys.exit(128 + signal.SIGTERM)
    if states & {FAILED, REFUSED}:
        sys.exit(1)


def with_threads(cells: list[Cell], jobs: int, threads: int | None = None) -> list[Cell]:
    """Return the experiments of a grid with a number of threads for each: an equal share of the cores by default."""
    share = max(1, (os.cpu_count() or 1) // jobs)
    return [
        dataclasses.replace(cell, experiment=dataclasses.replace(e, threads=chosen))
        for cell in cells
        for e in [cell.experiment]
        for chosen in [threads if threads is not None else e.threads or e.preset.threads or share]
    ]


def run_cells(
    cells: list[Cell],
    out: Path,
    jobs: int | None,
    *,
    retry: bool = False,
    fresh: bool = False,
    devices: Sequence[torch.device] = (),
    on: str | None = None,
    join: bool = False,
) -> set[str]:
    """Run the experiments of a grid, each in its own process, show their progress, and return the states at the end."""
    from rich.console import Console

    from cuber.experiments.campaign import run_grid
    from cuber.experiments.devices import OnDevices
    from cuber.experiments.engines import RemoteEngine, open_engine
    from cuber.experiments.processes import LocalProcesses
    from cuber.report.live import GridLines, GridTable
    from cuber.report.terminal import show_outcome

    jobs = jobs or (1 if on is None else None)
    console = Console()
    executor: LocalProcesses | RemoteEngine
    if on is not None:
        executor = open_engine(on, out)
    else:
        executor = OnDevices(jobs or 1, devices) if devices else LocalProcesses(jobs or 1)
    options: dict[str, Any] = {"retry": retry, "fresh": fresh, "join": join or on is not None, "jobs": jobs}
    signal.signal(signal.SIGTERM, lambda *_: executor.stop())
    with (GridTable if console.is_terminal else GridLines)(console) as watch:
        try:
            jobs_done = run_grid(cells, executor, watch=watch, **options)
        except BaseException:  # Ctrl-C, or the output was closed: all runs save and stop
            executor.stop(signal.SIGINT)
            raise
        finally:
            executor.shutdown()
    show_outcome(jobs_done, out, console)
    return {job.state for job in jobs_done}


def submit_grid(context: typer.Context, out: Path, runs: int) -> None:
    """Submit the command of a grid to Slurm, as an array of ``cuber grid --join``."""
    from cuber.experiments.engines.slurm import submit_array

    given = {parameter.name: (parameter, context.params[parameter.name]) for parameter in context.command.params}
    jobs, threads = given["jobs"][1], given["threads"][1]
    if jobs is None:
        raise CuberError("--on slurm needs --jobs: the number of array tasks, which divide the runs")
    arguments: list[str] = []
    for name, (parameter, value) in given.items():
        if name in ("on", "jobs", "join", "out", "threads") or value is None or value is False:
            continue
        values = [str(one) for one in (value if isinstance(value, list | tuple) else [value])]
        if parameter.param_type_name == "argument":
            arguments += values
        else:
            flag = parameter.opts[0]
            arguments += [flag] if value is True else [f"{flag}={one}" for one in values]
    arguments += [f"--out={out}", f"--threads={threads or 1}", "--join"]
    job = submit_array(["grid", *arguments], out, jobs, threads or 1)
    print(f"submitted job {job} to Slurm: {jobs} array tasks for {runs} runs; their output is in {out}")


def _values(assignments: list[str]) -> dict[str, list[Any]]:
    """Parse ``["eps2=0,0.1"]`` to ``{"eps2": [0, 0.1]}``."""
    from cuber.core.settings import parse_settings, read_value

    values: dict[str, list[Any]] = {}
    for name, text in parse_settings(assignments).items():
        whole = read_value(f"[{text}]")
        values[name] = whole if isinstance(whole, list) else [read_value(part) for part in text.split(",")]
    return values
