"""``cuber run`` and ``cuber grid``, and the options that they share."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cuber.cli.help import DIRECTORY, EXPERIMENT, MACHINE
from cuber.cli.options import THREADS, fields_of, option, recording_of, with_shared_options
from cuber.cli.options import out as out_option
from cuber.core.allocation import keep_freed_memory
from cuber.errors import CuberError

if TYPE_CHECKING:
    import torch

    from cuber.experiments.grid import Cell

FRESH: Any = option(False, "--fresh", group=DIRECTORY, help="Start over, and replace what is there.")
QUIET: Any = option(False, "--quiet", help="Print only the outcome.")


@with_shared_options
def run(
    benchmark: str = typer.Argument("overlap-digits", help="See cuber list.", rich_help_panel=EXPERIMENT),
    method: str = option("cuber", group=EXPERIMENT, metavar="NAME", help="Method; see cuber list."),
    seed: int = option(0, group=EXPERIMENT, help="Seed of data, weights and order."),
    settings: list[str] = option(
        [], "--set", group=EXPERIMENT, metavar="NAME=VALUE", help="Setting of the method; repeatable."
    ),
    out: str | None = out_option(None, "DIR", "Where to keep the run; again: resume it.", DIRECTORY),
    fresh: bool = FRESH,
    device: str | None = option(
        None, group=MACHINE, metavar="NAME", help="cpu, cuda, cuda:1, mps or auto.", show_default="cpu"
    ),
    threads: int | None = THREADS,
    quiet: bool = QUIET,
    **options: Any,
) -> None:
    """Learn the tasks of a benchmark one after another."""
    from cuber.report.console import PlainConsole

    keep_freed_memory()
    from cuber.core import distributed
    from cuber.core.settings import parse_settings, read_value
    from cuber.experiments import Experiment
    from cuber.experiments import run as run_experiment
    from cuber.loggers import make_logger
    from cuber.report import Bars, Lines, show_result, show_summary
    from cuber.training import RunDirectory, Stopped, UnwrittenResultError

    is_first = not distributed.rank_from_environment()  # of the processes that torchrun starts, one reports
    console = PlainConsole(quiet=not is_first)
    if not is_first:
        warnings.simplefilter("ignore")
    chosen = {name: read_value(text) for name, text in parse_settings(settings).items()}
    recording = recording_of(options)
    options.update(threads=threads, device=device)
    experiment = Experiment(benchmark, method, seed, settings=chosen, **fields_of(options))
    checkpoint_every, log, theory = (recording[name] for name in ("checkpoint_every", "log", "theory"))
    directory = None
    if out is None:
        for name, value in (("--fresh", fresh), ("--checkpoint-every", checkpoint_every), ("--log", log)):
            if value:
                raise CuberError(f"{name} needs a run directory: name one with --out")
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


@with_shared_options
def grid(
    context: typer.Context,
    what: list[str] = typer.Argument(
        metavar="BENCHMARK", help="See cuber list; or one TOML file.", rich_help_panel=EXPERIMENT
    ),
    methods: str | None = option(
        None,
        "--methods",
        "--method",
        group=EXPERIMENT,
        metavar="NAMES",
        help="As in cuber,trgp,gpm.",
        show_default="cuber",
    ),
    seeds: str | None = option(
        None, "--seeds", "--seed", group=EXPERIMENT, metavar="NUMBERS", help="As in 0-4 or 0,2,5.", show_default="0-4"
    ),
    settings: list[str] = option(
        [], "--set", group=EXPERIMENT, metavar="NAME=VALUE,...", help="Setting; each value is tried; repeatable."
    ),
    out: str = out_option("runs", "DIR", "Directory of the run directories.", DIRECTORY),
    fresh: bool = FRESH,
    retry: bool = option(False, "--retry", group=DIRECTORY, help="Also run those that have failed before."),
    join: bool = option(False, "--join", group=DIRECTORY, help="Share the runs with others that have this --out."),
    jobs: int | None = option(None, group=MACHINE, min=1, help="Runs at a time.", show_default="1; with --on: all"),
    on: str | None = option(
        None,
        group=MACHINE,
        metavar="ENGINE",
        help="slurm, ray, ray://HOST:PORT or dask://HOST:PORT.",
    ),
    device: str | None = option(None, group=MACHINE, metavar="NAMES", help="As for run, or several: cuda:0,cuda:1."),
    threads: int | None = option(None, group=MACHINE, help="Of each run.", show_default="cores / jobs; with --on: 1"),
    quiet: bool = QUIET,
    **options: Any,
) -> None:
    """Run every combination of methods, seeds and settings.

    Each run has its own process and directory. The same command resumes what is not finished.
    """
    from cuber.core import distributed
    from cuber.core.device import check_name, find_devices
    from cuber.experiments.campaign import FAILED, REFUSED, STOPPED
    from cuber.loggers import make_logger

    if distributed.rank_from_environment() is not None:
        raise CuberError("cuber grid starts processes of its own: call it without torchrun, or use cuber run")
    if not out:
        raise CuberError("--out takes a directory, and '' is none")
    if fresh and (on is not None or join):
        raise CuberError("--fresh needs the runs for itself, without --on and --join: choose another --out instead")
    if on is not None:
        out = os.path.abspath(out)  # other machines have other working directories
    recording = recording_of(options)
    for name in recording["log"]:
        make_logger(name, Path(out))  # its package may be missing
    cells = _cells(what, out, methods, seeds, settings, fields_of(options))
    if device is not None:
        for name in device.split(","):
            check_name(name.strip())
    cells = with_threads(cells, (jobs or 1) if on is None else os.cpu_count() or 1, threads)
    devices = find_devices(device) if device is not None and on is None else []
    if on is not None:  # workers find their own devices
        cells = [for_workers(cell, device) for cell in cells]
    if on == "slurm":
        submit_grid(context, Path(out), cells)
        return
    states = run_cells(
        cells,
        Path(out),
        jobs,
        retry=retry,
        fresh=fresh,
        devices=devices,
        on=on,
        join=join,
        quiet=quiet,
        recording=recording,
    )
    if STOPPED in states:
        sys.exit(128 + signal.SIGTERM)
    if states & {FAILED, REFUSED}:
        sys.exit(1)


def _cells(
    what: list[str], out: str, methods: str | None, seeds: str | None, settings: list[str], fixed: dict[str, Any]
) -> list[Cell]:
    """Return the experiments of a grid file, or of benchmarks, methods, seeds and settings."""
    from cuber.experiments.grid import grid as make_grid
    from cuber.experiments.grid import numbers, read_grid

    if len(what) == 1 and what[0].endswith(".toml"):
        several = {"methods": methods, "seeds": seeds, "settings": settings or None}
        also = [*(name for name, value in several.items() if value is not None), *fixed]
        if also:
            raise CuberError(f"with a grid file, set {', '.join(also)} in the file")
        return read_grid(what[0], out)
    # An empty text, as from an unset variable of a shell, is not replaced by the default.
    methods, seeds = "cuber" if methods is None else methods, "0-4" if seeds is None else seeds
    return make_grid(out, what, methods.split(","), numbers(seeds), _values(settings), **fixed)


def with_threads(cells: list[Cell], jobs: int, threads: int | None = None) -> list[Cell]:
    """Return the experiments of a grid with a number of threads for each: an equal share of the cores by default."""
    share = max(1, (os.cpu_count() or 1) // jobs)
    return [
        dataclasses.replace(cell, experiment=dataclasses.replace(e, threads=chosen))
        for cell in cells
        for e in [cell.experiment]
        for chosen in [threads if threads is not None else e.threads or e.preset.threads or share]
    ]


def for_workers(cell: Cell, device: str | None) -> Cell:
    """Return a run as other machines can do it: with this device if one is given, and data where this one has them."""
    experiment = cell.experiment
    data_dir = experiment.data_dir and os.path.abspath(os.path.expanduser(experiment.data_dir))
    changed = dataclasses.replace(experiment, device=device or experiment.device, data_dir=data_dir)
    return dataclasses.replace(cell, experiment=changed)


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
    quiet: bool = False,
    recording: Mapping[str, Any] | None = None,
) -> set[str]:
    """Run the experiments of a grid, each in its own process, show their progress, and return the states at the end."""
    from cuber.experiments.campaign import run_grid
    from cuber.experiments.devices import OnDevices
    from cuber.experiments.engines import RemoteEngine, open_engine
    from cuber.experiments.processes import LocalProcesses
    from cuber.report.console import PlainConsole
    from cuber.report.live import GridLines, GridTable
    from cuber.report.terminal import show_outcome

    jobs = jobs or (1 if on is None else None)
    console = PlainConsole()
    executor: LocalProcesses | RemoteEngine
    if on is not None:
        executor = open_engine(on, out)
    else:
        executor = OnDevices(jobs or 1, devices) if devices else LocalProcesses(jobs or 1)
    signal.signal(signal.SIGTERM, lambda *_: executor.stop())
    live: Any = nullcontext() if quiet else GridTable(console) if console.is_terminal else GridLines(console)
    with live as watch:
        try:
            jobs_done = run_grid(
                cells,
                executor,
                retry=retry,
                fresh=fresh,
                join=join or on is not None,
                jobs=jobs,
                recording=recording,
                watch=watch,
            )
        except BaseException:  # Ctrl-C, or the output was closed: all runs save and stop
            executor.stop(signal.SIGINT)
            raise
        finally:
            executor.shutdown()
    show_outcome(jobs_done, out, console)
    return {job.state for job in jobs_done}


def submit_grid(context: typer.Context, out: Path, cells: list[Cell]) -> None:
    """Submit the command of a grid to Slurm, as an array of ``cuber grid --join``."""
    from cuber.experiments.engines.slurm import submit_array

    given = {parameter.name: (parameter, context.params[parameter.name]) for parameter in context.command.params}
    jobs, threads = given["jobs"][1], max(cell.experiment.threads or 1 for cell in cells)
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
    arguments += [f"--out={out}", f"--threads={threads}", "--join"]
    job = submit_array(["grid", *arguments], out, jobs, threads)
    print(f"submitted job {job} to Slurm: {jobs} array tasks for {len(cells)} runs; their output is in {out}")


def _values(assignments: list[str]) -> dict[str, list[Any]]:
    """Parse ``["eps2=0,0.1"]`` to ``{"eps2": [0, 0.1]}``."""
    from cuber.core.settings import parse_settings, read_value

    values: dict[str, list[Any]] = {}
    for name, text in parse_settings(assignments).items():
        whole = read_value(f"[{text}]")
        values[name] = whole if isinstance(whole, list) else [read_value(part) for part in text.split(",")]
    return values
