"""The training loop for a stream of batches without task boundaries: ``cuber.learn(..., boundaries="detect")``.

Batches are held back for as long as a change may take to be noticed (``Boundaries.delay``), so that no step is made on
batches that turn out to belong to the next task. ``begin_task`` gets the batches that are held back, and ``end_task``
the last ones that were trained on. A task that comes back has ended for its method: it is recognized, its batches are
not trained on, and its number answers for it.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cuber.core import batches
from cuber.core.boundaries import Boundaries, Observation
from cuber.core.randomness import random_state, set_random_state
from cuber.core.state import nbytes
from cuber.errors import CuberError, CuberWarning
from cuber.networks.heads import heads_of
from cuber.runs.directory import Stopped
from cuber.runs.result import Epoch, Result
from cuber.streams.unmarked import UnmarkedStream
from cuber.training.describe import add_device
from cuber.training.loop import TaskLoop
from cuber.training.progress import ProgressEvent

Batch = tuple[Tensor, ...]
EPOCH_SAMPLES = 1000
"""Samples of an "epoch", after which methods look at what the present task does to the old ones."""
NUMBERS = ("number", "accepted", "step", "due", "largest_buffer")
"""Attributes that a checkpoint has."""


@dataclass(eq=False)
class DetectingTrainer(TaskLoop):
    """Runs a method through the batches of a stream, and ends and begins tasks where their inputs change.

    Args:
        boundaries: Around the same learner.
    """

    boundaries: Boundaries = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        # So that a run whose epochs had another length is refused, and not continued with this one.
        self.result.training |= {"boundaries": self.boundaries.settings, "epoch_samples": EPOCH_SAMPLES}
        self.epoch_steps = max(self.boundaries.delay, math.ceil(EPOCH_SAMPLES / self.config.batch_size))
        """Steps of an "epoch": nothing else in the stream has a length that is known."""
        self.unmarked = UnmarkedStream(self.stream, self.config.batch_size, self.config.epochs, self.seed)
        self.held: deque[Batch] = deque()
        """Observed, and not yet trained on."""
        self.recent: deque[Batch] = deque()
        """The last ones that were trained on: as many as may be held back, and as ``end_task`` needs samples."""
        self.found: list[dict[str, Any]] = []
        """Changes and drifts that were noticed."""
        self.number = 0
        """Of the task that the accepted batches belong to."""
        self.accepted = 0
        """Number of batches that were trained on, or skipped as those of a known task."""
        self.answers: list[Counter[int]] = [Counter() for _ in self.stream]
        """Position in the stream -> number of its batches that were taken for each task."""
        self.due = 0
        """Tasks of the stream that ended before this batch are to be tested now."""
        self.largest_buffer = 0
        self.result.accuracy_inferred = None  # the task that is being learned has no density yet
        self._random: dict[str, Any] | None = None  # of training, during tests

    def _learn_tasks(self, state: dict[str, Any] | None) -> Result:
        loop = self._load(state) if state is not None else None
        with self._seeded("train"):
            if loop is not None:
                set_random_state(loop["random"], self.learner.device)
            self._test_up_to(self.due)  # a run may have been stopped in a test
            for batch in self.unmarked.batches(self.boundaries.batches):
                self._observe(batch)
                self._test_up_to(self.due)
                self._pause()
            while self.held:
                self._accept()
            self._end_task()
            self._test_up_to(len(self.unmarked))
        if self.boundaries.tasks == 1 and self.boundaries.is_warming_up and not self.found:
            warnings.warn(
                f"the stream has fewer samples than the warm_up of {self.boundaries.warm_up}, so that no change could "
                "be noticed: give cuber.Boundaries a smaller warm_up, or tell where tasks begin",
                CuberWarning,
                stacklevel=2,
            )
        self._test_orders()
        self.result.boundaries = self._summary()
        self._save()
        return self.result

    def _observe(self, batch: Batch) -> None:
        """Look at the next batch, and train on the one that can no longer belong to the next task."""
        seen = self.boundaries.observe(batch)
        self.held.append(batch)
        buffered = nbytes([*self.held, *self.recent]) + self.boundaries.memory_bytes()["test"]
        self.largest_buffer = max(self.largest_buffer, buffered)
        self.due = max(self.due, self.boundaries.batches - 2 * self.boundaries.delay)
        if seen.kind != "same":
            self._note(seen)
        if seen.is_boundary:
            self._change_task(seen)
        if len(self.held) > self.boundaries.delay:
            self._accept()

    def _note(self, seen: Observation) -> None:
        values = {"kind": seen.kind, "task": seen.task, "change": seen.change, "noticed": self.boundaries.batches - 1}
        self.found.append({**values, "log_evidence": seen.log_evidence})
        if self._directory is not None:
            self._directory.event("boundary", self.found[-1])

    def _change_task(self, seen: Observation) -> None:
        """Train on what is left of the old task, and end it; the next one begins with its first step."""
        assert seen.change is not None
        while self.accepted < seen.change:
            self._accept()
        self._end_task()
        self.due = self.boundaries.batches
        heads = min((len(multi.heads) for multi in heads_of(self.learner.model)), default=None)
        if heads is not None and seen.task >= heads:
            raise CuberError(
                f"{seen.task + 1} tasks were found up to batch {seen.change}, but the model has {heads} heads: "
                "give it more heads, or lower false_alarms"
            )
        self.number = seen.task

    def _accept(self) -> None:
        """Train on the oldest batch that is held back, unless its task was learned before."""
        batch = self.held.popleft()
        self.answers[self.unmarked.position(self.accepted)][self.number] += 1
        self.accepted += 1
        if self.number < self.learner.tasks:
            return
        if self.learner.task is None:
            self._begin_task([batch, *self.held])
        self.make_step(batch)
        self.recent.append(batch)
        while len(self.recent) > self.boundaries.delay and self._samples_after_first >= self.learner.sample_size:
            self.recent.popleft()
        if self.step == self.epoch_steps:
            self._end_epoch()

    @property
    def _samples_after_first(self) -> int:
        """Number of recent samples without the oldest batch."""
        return sum(map(batches.size, self.recent)) - batches.size(self.recent[0])

    def _begin_task(self, loader: list[Batch]) -> None:
        self._reset()
        with self._seeded("begin", self.number):
            self.learner.begin_task(loader, self.loss_fn, steps=self.epoch_steps)
        self._make_optimizer()

    def _end_epoch(self) -> None:
        """Tell the method of an epoch."""
        self.learner.end_epoch()
        lr = self.optimizer.param_groups[0]["lr"]
        self.history.append(Epoch(self._loss / self._samples, lr, self._seconds - self._epoch_began))
        self._epoch_began = self._seconds
        self.step, self._loss, self._samples = 0, 0.0, 0
        self._report(self.history[-1].train_loss)
        self._log_epoch(self.number, self._name)

    def _end_task(self) -> None:
        if self.learner.task is None:
            return
        if self.step:
            self._end_epoch()
        with self._seeded("end", self.number):
            self.learner.end_task(list(self.recent))
        self.recent.clear()
        self.history[-1].kept = True
        self._record_task(self.learner.memory_bytes() | {"boundaries": self.boundaries.memory_bytes()["tasks"]})

    # Tests

    def _test_up_to(self, batch: int) -> None:
        """Add the rows of all tasks of the stream that had ended before a batch: the truth is used for nothing else.

        A task is tested once none of its batches is held back: what answers for it is not known before.
        """
        last = min(batch, self.accepted)
        while (tested := len(self.result.accuracy)) < len(self.stream) and self.unmarked.ends[tested] <= last:
            self._random = random_state(self.learner.device)
            self._test(tested)
            self._random = None

    @property
    def _answering(self) -> list[int]:
        """For each task of the stream that has ended, the task that most of its batches were taken for."""
        ended = min(len(self.result.accuracy) + 1, len(self.stream))
        return [counts.most_common(1)[0][0] for counts in self.answers[:ended]]

    def _summary(self) -> dict[str, Any]:
        """Return what was found beside the truth, as plain values."""
        changes, noticed = self.unmarked.changes, [each for each in self.found if each["kind"] != "drift"]
        delays: list[int | None] = []
        for change, following in zip(changes, [*changes[1:], len(self.unmarked)], strict=False):
            within = [each["noticed"] - change for each in noticed if change <= each["noticed"] < following]
            delays.append(within[0] if within else None)
        return {
            "found": self.found,
            "changes": changes,
            "delays": delays,
            "false_alarms": len(noticed) - sum(delay is not None for delay in delays),
            "answers": [counts.most_common(1)[0][0] if counts else None for counts in self.answers],
            "batches": len(self.unmarked),
            "largest_buffer": self.largest_buffer,
        }

    # Stopping, saving and loading

    def _pause(self) -> None:
        self._stop_if_asked()
        epochs = len(self.history) if self.learner.task is not None and self.step == 0 else None
        if self._directory is not None and self._directory.due(epochs):
            self._save()

    def _stop_if_asked(self) -> None:
        if self._signals:
            self._save()
            raise Stopped(self._signals[0], f"before batch {self.boundaries.batches} of the stream")

    def _save(self) -> None:
        if self._directory is None:
            return
        in_task = self.learner.task is not None
        self.result.boundaries = self._summary()
        self._directory.save(
            {
                "result": self.result.plain(),
                "model": self.learner.model.state_dict(),
                "learner": self.learner.state_dict(),
                "trainer": {
                    "boundaries": self.boundaries.state_dict(),
                    "optimizer": self.optimizer.state_dict() if in_task else None,
                    "random": self._random or random_state(self.learner.device),
                    "history": [dataclasses.asdict(epoch) for epoch in self.history] if in_task else [],
                    "held": list(self.held),
                    "recent": list(self.recent),
                    "answers": [sorted(counts.items()) for counts in self.answers],
                    **{name: getattr(self, name) for name in NUMBERS},
                    "loss": [self._loss, self._samples],
                    "seconds": [self._seconds, self._epoch_began],
                },
            }
        )

    def _load(self, state: dict[str, Any]) -> dict[str, Any]:
        self._set_result(Result.from_dict(state["result"]))
        add_device(self.result, self.learner.device)
        self.learner.load_state_dict(state["learner"])
        self.learner.model.load_state_dict(state["model"])
        loop: dict[str, Any] = state["trainer"]
        self.boundaries.load_state_dict(loop["boundaries"])
        self.found = self.result.boundaries["found"] if self.result.boundaries else []
        self.held, self.recent = (deque(map(tuple, loop[name])) for name in ("held", "recent"))
        self.answers = [Counter(dict(counts)) for counts in loop["answers"]]
        for name in NUMBERS:
            setattr(self, name, loop[name])
        self.history = [Epoch(**epoch) for epoch in loop["history"]]
        self._loss, self._samples = loop["loss"]
        seconds, self._epoch_began = loop["seconds"]
        self._began = time.perf_counter() - seconds
        if self.learner.task is not None:
            self.learner.resume_task(self.loss_fn)
            self._make_optimizer()
            self.optimizer.load_state_dict(loop["optimizer"])
        return loop

    # Reports

    @property
    def _name(self) -> str:
        return "found in the stream"

    @property
    def _place(self) -> str:
        return f"batch {self.accepted - 1} of the stream, in task {self.number}"

    def _report(self, loss: float, part: float = 0.0, *, finished: bool = False) -> None:
        if self.progress is not None:
            done = self.boundaries.batches / len(self.unmarked)
            self.progress(
                ProgressEvent(
                    self.number,
                    len(self.stream),
                    self._name,
                    epoch=done,
                    epochs=1,
                    loss=loss,
                    accuracy=None,
                    metric=self.result.metric,
                    validated=False,
                    seconds=self._seconds,
                    finished=finished,
                )
            )
