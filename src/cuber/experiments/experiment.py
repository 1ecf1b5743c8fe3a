"""One experiment: benchmark, method, and what differs from their presets; and how to run it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from cuber import training
from cuber.core.device import check_name, find_device
from cuber.core.randomness import check_seed, derive, seeded
from cuber.core.settings import Setting, check_values, settings_of, short
from cuber.errors import CuberError, unknown
from cuber.experiments.outside import find_benchmark
from cuber.experiments.presets import BENCHMARKS, Benchmark, Protocol
from cuber.methods import METHODS, Method, find_method
from cuber.streams import Stream
from cuber.training import Progress, Result, RunDirectory, learn
from cuber.training.config import TrainingConfig, training_options

NUMBERS = {
    "tasks": Setting("number of tasks"),  # the stream knows how many there are
    "threads": Setting("threads for torch", low=1, high=1024),
    "workers": Setting("processes that read data", low=0, high=1024),
    "train_per_task": Setting("training samples per task", low=1),
    "test_per_task": Setting("test samples per task", low=1),
}


def _add_training_fields(cls: type) -> type:
    """Give a class each field of TrainingConfig, with None for "as the benchmark has it"."""
    for name, (kind, _, _) in training_options().items():
        cls.__annotations__[name] = f"{kind.__name__} | None"
        setattr(cls, name, None)
    return cls


@dataclass(frozen=True)
@_add_training_fields
class Experiment:
    """Everything that decides a result, and how to compute it, validated; None: as the benchmark has it.

    Besides the arguments below it takes the training options, such as ``epochs``, ``lr`` and ``batch_size``, which are
    described at :func:`cuber.learn`.

    Args:
        benchmark: Name of a benchmark, as in ``cuber list``.
        method: Name of a method.
        seed: Determines data, initial weights and the order of the samples.
        tasks: Number of tasks, the first ones of the stream.
        settings: Settings of the method, by name.
        threads: Threads for torch.
        device: Such as ``"cuda:1"`` (default: ``"cpu"``).
        workers: Processes that read data (default: none besides this one).
        train_per_task: Largest number of training samples of a task.
        test_per_task: Largest number of test samples of a task.
        protocol: Name of a protocol of the benchmark (default: its first).
        options: Options of the benchmark's stream, by name.
        data_dir: Where the downloads are.
        boundaries: ``"detect"``: the learner is not told where tasks begin (default: it is).

    Raises:
        CuberError: A name is unknown or a value not allowed.

    >>> experiment = Experiment("split-digits", "gpm", seed=1, tasks=2, epochs=3)
    >>> experiment.training().epochs, len(experiment.stream())
    (3, 2)
    """

    benchmark: str = next(iter(BENCHMARKS))
    method: str = next(iter(METHODS))
    seed: int = 0
    tasks: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    device: str | None = None
    workers: int | None = None
    train_per_task: int | None = None
    test_per_task: int | None = None
    protocol: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    data_dir: str | None = None
    boundaries: str | None = None

    def __post_init__(self) -> None:
        for name in ("benchmark", "method", "protocol", "data_dir"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | os.PathLike):
                raise CuberError(f"{name} must be text, not {short(value)}")
        for name in ("settings", "options"):
            if not isinstance(getattr(self, name), Mapping):
                raise CuberError(f"{name} must be a table of names and values, not {short(getattr(self, name))}")
        for name, limits in NUMBERS.items():
            value = getattr(self, name)
            if value is not None:
                limits.check(name, value, 0)
        if self.device is not None:
            check_name(self.device)
        if self.boundaries not in (None, "detect"):
            raise unknown("choice of boundaries", str(self.boundaries), ("detect",))
        find_benchmark(self.benchmark)
        find_method(self.method)
        check_seed(self.seed)
        check_values(self.method_class, self.settings)
        for name, value in self.options.items():
            if name not in self.preset.options:
                users = [other.name for other in BENCHMARKS.values() if name in other.options]
                raise CuberError(f"{self.benchmark} has no option '{name}' ({', '.join(users) or 'no benchmark'} has)")
            self.preset.options[name].check(name, value)
        self._protocol()
        self.training()

    @property
    def preset(self) -> Benchmark:
        """The benchmark of that name."""
        return find_benchmark(self.benchmark)

    @property
    def method_class(self) -> type[Method]:
        """The method of that name."""
        return find_method(self.method)

    def training(self) -> TrainingConfig:
        """Return the training options of the benchmark, overridden by those given here."""
        own = {name: value for name, value in self._presets().items() if name == "lr"}
        given = {name: getattr(self, name) for name in training_options() if getattr(self, name) is not None}
        return dataclasses.replace(self.preset.training, **{**self._protocol().training, **own, **given})

    def notes(self) -> list[str]:
        """Return a note for the result if there are fewer epochs than in the benchmark."""
        epochs, usual = self.training().epochs, self._protocol().training.get("epochs", self.preset.training.epochs)
        return [f"only {epochs} of {usual} epochs"] if epochs < usual else []

    def method_settings(self) -> dict[str, Any]:
        """Return the hyper-parameters of the method in the benchmark, overridden by those given here."""
        return {**{name: value for name, value in self._presets().items() if name != "lr"}, **self.settings}

    def stream(self) -> Stream:
        """Return the stream of the benchmark, with as many tasks and samples as asked for."""
        where = {"data_dir": self.data_dir} if self.preset.datasets else {}
        stream = self.preset.stream(self.seed, **where, **{**self._protocol().options, **self.options})
        if not isinstance(stream, Stream):
            raise CuberError(f"the stream of {self.benchmark} must be a cuber.Stream, not {short(stream)}")
        stream = stream.renamed(self.benchmark)  # by which results are compared
        if self.tasks is not None:
            stream = stream.first(self.tasks)
        return stream.shrink(self.train_per_task, self.test_per_task, self.seed).with_notes(*self.notes())

    def learner(self, stream: Stream, device: torch.device | str = "cpu") -> Method:
        """Return the method around a new network for a stream."""
        with seeded(derive(self.seed, "network")):
            model = self.preset.network(stream)
        return self.method_class(model.to(device), **self.method_settings())

    def about(self) -> dict[str, Any]:
        """Return the values of ``config.toml`` besides training options and hyper-parameters."""
        names = ("method", "tasks", "train_per_task", "test_per_task")
        protocol = self.protocol or next(iter(self.preset.protocols))
        defaults = {name: option.default for name, option in self.preset.options.items()}
        chosen = {**defaults, **self._protocol().options, **self.options}
        found = {} if self.boundaries is None else {"boundaries": self.boundaries}  # not in configurations of old runs
        return {name: getattr(self, name) for name in names} | {"protocol": protocol, "options": chosen} | found

    def expected(self) -> dict[str, dict[str, Any]]:
        """Return the tables of ``config.toml`` as far as they are known without the data."""
        return {
            "experiment": {"benchmark": self.benchmark, "seed": self.seed, **self.about()},
            "training": dataclasses.asdict(self.training()),
            "settings": self.method_settings(),
        }

    def _presets(self) -> dict[str, Any]:
        """Return what benchmark and protocol set for the method."""
        chosen, changes = (source.settings.get(self.method, {}) for source in (self.preset, self._protocol()))
        known = settings_of(self.method_class)
        common = {name: value for name, value in self.preset.for_all_methods.items() if name in known}
        return {**common, **chosen, **changes}

    def _protocol(self) -> Protocol:
        protocols = self.preset.protocols
        name = next(iter(protocols)) if self.protocol is None else self.protocol
        if name not in protocols:
            raise unknown("protocol", name, protocols)
        return protocols[name]


def run(
    experiment: Experiment,
    directory: RunDirectory | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    theory: bool = False,
) -> Result:
    """Build the stream, the network and the method of an experiment, and learn; the seed decides all three.

    Args:
        experiment: What to run.
        directory: Where to keep the run; a run that was stopped is resumed, a finished one is only read.
        progress: Called with each event of the run, as by :func:`cuber.learn`.
        theory: Also record how far the conditions of the theorems are met.

    Returns:
        The result.

    >>> result = run(Experiment("split-digits", "finetune", tasks=2, epochs=1))
    >>> len(result.accuracy), result.notes
    (2, ['only 2 of 5 tasks', 'only 1 of 10 epochs'])
    """
    device = find_device(experiment.device or "cpu")
    stream = experiment.stream()
    learner = experiment.learner(stream, device)
    with limited(experiment.threads or experiment.preset.threads):
        return learn(
            learner,
            stream,
            seed=experiment.seed,
            progress=progress,
            directory=directory,
            about=experiment.about(),
            observer=training.TheoryRecorder(learner) if theory else None,
            workers=experiment.workers or 0,
            boundaries=experiment.boundaries,
            **dataclasses.asdict(experiment.training()),
        )


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Limit torch to a number of threads; None: no change."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
