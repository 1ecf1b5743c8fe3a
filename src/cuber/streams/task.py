"""Tasks and streams of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from cuber.core.formatting import pluralize
from cuber.core.metric import as_metric
from cuber.core.settings import WithSettings
from cuber.errors import CuberError
from cuber.streams.splits import Data, DatasetSplit, Split, as_split, check_labels


class Task(WithSettings):
    """Training and test data, optional validation data, with labels in ``range(classes)`` or any other targets.

    Args:
        name: Shown in results and error messages.
        train: ``(x, y)`` of tensors or numpy arrays, or a torch Dataset of such pairs. uint8 inputs are divided by 255.
        test: Test data.
        validation: Validation data, used for early stopping.
        classes: Number of classes (default: the largest label plus 1; required for a Dataset).
        outputs: For targets that are not one label per sample (regression, a label for each pixel or token): the
            number of outputs of the task's head, instead of ``classes``. Such tasks need a ``metric``.
        notes: Remarks on the data, such as samples left out, that results repeat.

    >>> Task("two points", train=(torch.eye(2), [0, 1]), test=(torch.eye(2), [0, 1]), classes=2)
    Task('two points': 2 training, 0 validation, 2 test samples, 2 classes)
    >>> task = Task("points", train=(torch.rand(100, 3), torch.arange(100) % 2), test=(torch.eye(3), [0, 1, 1]))
    >>> generator = torch.Generator().manual_seed(0)
    >>> task.split(0.1, generator).shrink(45, None, generator)
    Task('points': 45 training, 5 validation, 3 test samples, 2 classes)
    """

    def __init__(
        self,
        name: str,
        train: Data,
        test: Data,
        validation: Data | None = None,
        *,
        classes: int | None = None,
        outputs: int | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        if classes is not None and outputs is not None:
            raise CuberError(f"task '{name}': give classes (one label per sample) or outputs (any targets), not both")
        self.name = name
        self.notes = tuple(notes)
        self.outputs = outputs
        """Number of outputs of a task that has other targets than one label per sample; else None."""

        def read(data: Data, kind: str) -> Split:
            return as_split(data, f"task '{name}', {kind} split", labeled=outputs is None)

        self.train, self.test = read(train, "training"), read(test, "test")
        self.validation = None if validation is None else read(validation, "validation")
        self.classes = self._check(classes if outputs is None else outputs)
        """Number of classes, or of outputs."""

    def split(self, fraction: float, generator: torch.Generator) -> Task:
        """Return the task with some of its training samples held out for validation.

        Args:
            fraction: Share of the training samples that is held out, between 0 and 1.
            generator: Decides which ones.
        """
        if not 0 < fraction < 1:
            raise CuberError(f"task '{self.name}': the fraction to hold out must be between 0 and 1, not {fraction}")
        count = len(self.train)
        held_out = max(1, round(fraction * count))
        if held_out >= count:
            raise CuberError(f"task '{self.name}': {count} training samples are too few to hold {held_out} of them out")
        order = torch.randperm(count, generator=generator)
        train, validation = self.train.subset(order[held_out:]), self.train.subset(order[:held_out])
        return self._with(train, self.test, validation)

    def shrink(self, train: int | None, test: int | None, generator: torch.Generator) -> Task:
        """Return the task with fewer samples.

        The validation split shrinks by the same factor as the training split, but keeps as many samples as there are
        classes, or more.

        Args:
            train: Largest number of training samples; None: all.
            test: Largest number of test samples; None: all.
            generator: Decides which ones.
        """

        def sample(split: Split, count: int | None) -> Split:
            if count is None or count >= len(split):
                return split
            return split.subset(torch.randperm(len(split), generator=generator)[:count])

        validation = self.validation
        if validation is not None and train is not None:
            validation = sample(validation, max(self.classes, round(len(validation) * train / len(self.train))))
        return self._with(sample(self.train, train), sample(self.test, test), validation)

    def _with(self, train: Split, test: Split, validation: Split | None) -> Task:
        count = {"classes": self.classes} if self.outputs is None else {"outputs": self.outputs}
        return Task(self.name, train, test, validation, notes=self.notes, **count)

    def _check(self, classes: int | None) -> int:
        """Return the number of classes; raise CuberError if the labels or the shapes of the splits do not match."""
        splits = {"training": self.train, "validation": self.validation, "test": self.test}
        given = {f"task '{self.name}', {kind} split": split for kind, split in splits.items() if split is not None}
        labeled = {where: split for where, split in given.items() if not isinstance(split, DatasetSplit)}
        if classes is None:
            if len(labeled) < len(given):
                raise CuberError(f"task '{self.name}': a Dataset has no number of classes; give Task(..., classes=10)")
            classes = 1 + max(int(split.y.max()) for split in labeled.values())
        if not isinstance(classes, int) or classes < 1:
            kind = "classes" if self.outputs is None else "outputs"
            raise CuberError(f"task '{self.name}': {kind} must be a whole number of at least 1, not {classes!r}")
        shape = next((split.shape for split in labeled.values()), ())
        for where, split in given.items():
            if isinstance(split, DatasetSplit):
                split.classes = classes if self.outputs is None else None
                continue
            if self.outputs is None:
                check_labels(split.y, classes, where)
            if split.shape != shape:
                raise CuberError(f"{where}: its inputs are of shape {split.shape}, others of {shape}")
        return classes

    def __repr__(self) -> str:
        held_out = 0 if self.validation is None else len(self.validation)
        sizes = f"{len(self.train)} training, {held_out} validation, {len(self.test)} test samples"
        return f"Task('{self.name}': {sizes}, {self.classes} {'classes' if self.outputs is None else 'outputs'})"


class Stream(WithSettings):
    """Tasks in the order in which they are learned.

    Args:
        name: Shown in results.
        tasks: The tasks.
        shared_head: Whether all tasks have the same classes and share one output layer; else each has its own head.
        notes: Remarks on the data that results repeat.
        metric: What ``cuber.learn`` measures: a :class:`cuber.Metric` or a torchmetrics object (default: accuracy).

    >>> task = Task("two points", train=(torch.eye(2), [0, 1]), test=(torch.eye(2), [0, 1]))
    >>> stream = Stream("points", [task, task], shared_head=True)
    >>> len(stream), stream[1].name
    (2, 'two points')
    >>> stream.first(1).notes
    ('only 1 of 2 tasks',)
    >>> stream.split(0.5).shrink(test=1)
    Stream('points': 2 tasks, one shared head)
      Task('two points': 1 training, 1 validation, 1 test samples, 2 classes)
      Task('two points': 1 training, 1 validation, 1 test samples, 2 classes)
    """

    def __init__(
        self,
        name: str,
        tasks: Iterable[Task],
        *,
        shared_head: bool = False,
        notes: Iterable[str] = (),
        metric: Any = None,
    ) -> None:
        self.name = name
        self.tasks = list(tasks)
        self.shared_head = shared_head
        self._notes = tuple(notes)
        self.metric = as_metric(metric)
        if not self.tasks:
            raise CuberError(f"stream '{name}' has no tasks")
        for task in self.tasks:
            if not isinstance(task, Task):
                raise CuberError(f"stream '{name}' is made of cuber.Task, not of {type(task).__name__}")
            if shared_head and task.classes != self.tasks[0].classes:
                raise CuberError(
                    f"stream '{name}': task '{task.name}' has {task.classes} classes and '{self.tasks[0].name}' has "
                    f"{self.tasks[0].classes}, so they cannot share a head; leave shared_head out"
                )

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the stream and on each of its tasks."""
        return (*self._notes, *(f"{task.name}: {note}" for task in self.tasks for note in task.notes))

    def first(self, count: int) -> Stream:
        """Return the stream of the first tasks.

        Args:
            count: Number of tasks, from 1 to ``len(stream)``.
        """
        if not 1 <= count <= len(self):
            raise CuberError(f"{self.name} has {len(self)} tasks: choose 1 to {len(self)}, not {count}")
        return self._with(self.tasks[:count], *([f"only {count} of {len(self)} tasks"] if count < len(self) else []))

    def shrink(self, train: int | None = None, test: int | None = None, seed: int = 0) -> Stream:
        """Return the stream with fewer samples per task.

        Args:
            train: Largest number of training samples of a task; None: all.
            test: Largest number of test samples of a task; None: all.
            seed: Determines which ones.
        """
        notes = []
        largest = max(len(task.train) for task in self), max(len(task.test) for task in self)
        for count, kind, size in zip((train, test), ("training", "test"), largest, strict=True):
            if count is not None and count < 1:
                raise CuberError(f"a task needs at least 1 {kind} sample, not {count}")
            if count is not None and count < size:
                notes.append(f"only {pluralize(count, f'{kind} sample')} per task")
        generator = torch.Generator().manual_seed(seed)
        return self._with([task.shrink(train, test, generator) for task in self.tasks], *notes)

    def split(self, fraction: float, seed: int | torch.Generator = 0) -> Stream:
        """Return the stream with training samples held out in tasks without validation data.

        Args:
            fraction: Share of a task's training samples that is held out, between 0 and 1.
            seed: Determines which ones; a ``torch.Generator`` is drawn from.
        """
        generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
        return self._with(task.split(fraction, generator) if task.validation is None else task for task in self.tasks)

    def with_notes(self, *notes: str) -> Stream:
        """Return the stream with more notes."""
        return self._with(self.tasks, *notes)

    def renamed(self, name: str) -> Stream:
        """Return the stream with another name."""
        return Stream(name, self.tasks, shared_head=self.shared_head, notes=self._notes, metric=self.metric)

    def _with(self, tasks: Iterable[Task], *notes: str) -> Stream:
        notes = (*self._notes, *notes)
        return Stream(self.name, tasks, shared_head=self.shared_head, notes=notes, metric=self.metric)

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __getitem__(self, position: int) -> Task:
        return self.tasks[position]

    def __repr__(self) -> str:
        heads = "one shared head" if self.shared_head else "a head each"
        return "\n  ".join([f"Stream('{self.name}': {len(self)} tasks, {heads})", *map(repr, self.tasks)])
