"""Tasks, and streams of them: what is to be learnt, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from cuber.core.formatting import pluralize
from cuber.errors import CuberError
from cuber.streams.splits import Data, DatasetSplit, Split, as_part, check_labels


class Task:
    """Something to learn: training and test data, perhaps validation data, with labels in ``range(classes)``.

    Each part is ``(x, y)``, tensors or numpy arrays, or a torch Dataset; bytes (uint8) are divided by 255 on their way
    to the network.

    >>> Task("two points", train=(torch.eye(2), [0, 1]), test=(torch.eye(2), [0, 1]), classes=2)
    Task('two points': 2 training, 0 validation, 2 test samples, 2 classes)
    """

    def __init__(
        self,
        name: str,
        train: Data,
        test: Data,
        validation: Data | None = None,
        *,
        classes: int | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.notes = tuple(notes)
        """What a result should say about its data: that some was left out, or is not as it should be."""
        self.train = as_part(train, f"task '{name}', training part")
        self.test = as_part(test, f"task '{name}', test part")
        self.validation = None if validation is None else as_part(validation, f"task '{name}', validation part")
        self.classes = self._check(classes)

    def split(self, fraction: float, generator: torch.Generator) -> Task:
        """The same task with a random ``fraction`` of its training part held out as its validation part."""
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
        """The same task with at most so many random samples; as much less to validate with, but one per class."""

        def some(part: Split, count: int | None) -> Split:
            if count is None or count >= len(part):
                return part
            return part.subset(torch.randperm(len(part), generator=generator)[:count])

        validation = self.validation
        if validation is not None and train is not None:
            validation = some(validation, max(self.classes, round(len(validation) * train / len(self.train))))
        return self._with(some(self.train, train), some(self.test, test), validation)

    def _with(self, train: Split, test: Split, validation: Split | None) -> Task:
        return Task(self.name, train, test, validation, classes=self.classes, notes=self.notes)

    def _check(self, classes: int | None) -> int:
        """How many classes there are; raises a sentence unless the parts have them, and go together."""
        parts = {"training": self.train, "validation": self.validation, "test": self.test}
        given = {f"task '{self.name}', {kind} part": part for kind, part in parts.items() if part is not None}
        labelled = {where: part for where, part in given.items() if not isinstance(part, DatasetSplit)}
        if classes is None:
            if len(labelled) < len(given):
                raise CuberError(f"task '{self.name}': a Dataset does not tell its classes, say Task(..., classes=10)")
            classes = 1 + max(int(part.y.max()) for part in labelled.values())
        if not isinstance(classes, int) or classes < 1:
            raise CuberError(f"task '{self.name}': classes must be a whole number of at least 1, not {classes!r}")
        shape = next((part.shape for part in labelled.values()), ())
        for where, part in given.items():
            if isinstance(part, DatasetSplit):
                part.classes = classes
                continue
            check_labels(part.y, classes, where)
            if part.shape != shape:
                raise CuberError(f"{where}: its inputs are of shape {part.shape}, others of {shape}")
        return classes

    def __repr__(self) -> str:
        held_out = 0 if self.validation is None else len(self.validation)
        sizes = f"{len(self.train)} training, {held_out} validation, {len(self.test)} test samples"
        return f"Task('{self.name}': {sizes}, {self.classes} classes)"


class Stream:
    """Tasks in the order in which they are learnt.

    ``shared_head``: all tasks have the same classes and share one output layer; otherwise each has a head of its own.
    ``notes`` are about the stream as a whole, as those of a task are about its data.
    """

    def __init__(
        self, name: str, tasks: Iterable[Task], *, shared_head: bool = False, notes: Iterable[str] = ()
    ) -> None:
        self.name = name
        self.tasks = list(tasks)
        self.shared_head = shared_head
        self._notes = tuple(notes)
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
        """What a result should say about the data, those of the tasks included."""
        return (*self._notes, *(f"{task.name}: {note}" for task in self.tasks for note in task.notes))

    def first(self, count: int) -> Stream:
        """The stream of the first ``count`` tasks."""
        if not 1 <= count <= len(self):
            raise CuberError(f"{self.name} has {len(self)} tasks: choose 1 to {len(self)}, not {count}")
        return self._with(self.tasks[:count], *([f"only {count} of {len(self)} tasks"] if count < len(self) else []))

    def shrink(self, train: int | None = None, test: int | None = None, seed: int = 0) -> Stream:
        """The stream of the same tasks with at most so many samples each for training and for testing."""
        notes = []
        for count, kind, sizes in (
            (train, "training", [len(task.train) for task in self.tasks]),
            (test, "test", [len(task.test) for task in self.tasks]),
        ):
            if count is not None and count < 1:
                raise CuberError(f"a task needs at least 1 {kind} sample, not {count}")
            if count is not None and count < max(sizes):
                notes.append(f"only {pluralize(count, f'{kind} sample')} per task")
        generator = torch.Generator().manual_seed(seed)
        tasks = [task.shrink(train, test, generator) for task in self.tasks]
        return self._with(tasks, *notes)

    def split(self, fraction: float, seed: int = 0) -> Stream:
        """The stream in which every task has a validation part, held out of its training part where it had none."""
        generator = torch.Generator().manual_seed(seed)
        tasks = [task if task.validation is not None else task.split(fraction, generator) for task in self.tasks]
        return self._with(tasks)

    def noting(self, *notes: str) -> Stream:
        """The stream with more for a result to say about it."""
        return self._with(self.tasks, *notes)

    def _with(self, tasks: Iterable[Task], *notes: str) -> Stream:
        return Stream(self.name, tasks, shared_head=self.shared_head, notes=(*self._notes, *notes))

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __getitem__(self, position: int) -> Task:
        return self.tasks[position]

    def __repr__(self) -> str:
        heads = "one shared head" if self.shared_head else "a head each"
        return "\n  ".join([f"Stream('{self.name}': {len(self)} tasks, {heads})", *map(repr, self.tasks)])
