"""Notice when a new task begins in a stream of batches, and recognize tasks that come back."""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cuber.core.batches import Batch
from cuber.core.first_layer import FirstLayer
from cuber.core.learner import Method
from cuber.core.misuse import DETACHED
from cuber.core.settings import WithSettings, check_settings, setting, settings_of
from cuber.core.state import from_plain, nbytes, to_plain
from cuber.errors import CuberError
from cuber.subspace import Calibration, Density, TwoSidedTest, log_odds_against

SAME, KNOWN, NEW, DRIFT = "same", "known", "new", "drift"
GROUP = 3
"""Samples that are scored together; with more, fewer groups are left to compare with."""
RECOGNIZED = 30
"""Samples after a change from which it is told whether they are those of a known task."""
COMPARED = 60
"""Samples before and after a change, at least, from which it is told whether it was abrupt."""


@dataclass(frozen=True)
class Observation:
    """What a batch has shown.

    Args:
        kind: "same" (no change), "new" (a new task), "known" (an earlier task has come back), or "drift" (the inputs
            change slowly; the task goes on).
        task: number of the task that the stream is in.
        change: number of the first batch, from 0, after the change; None if there is none.
        log_evidence: logarithm of the martingale against "no change"; an alarm needs ``log(1 / false_alarms)``.

    >>> Observation("same", task=0).is_boundary, Observation("new", task=1, change=30).is_boundary
    (False, True)
    """

    kind: str
    task: int
    change: int | None = None
    log_evidence: float = 0.0

    @property
    def is_boundary(self) -> bool:
        """Whether one task ends here and another begins."""
        return self.kind in (NEW, KNOWN)


@dataclass
class KnownTask:
    """What is kept of a task to recognize it."""

    density: Density
    calibration: Calibration


@dataclass
class _State:
    """All that changes from batch to batch."""

    task: int
    tasks: int
    """Number of tasks so far, the present one included."""
    batches: int = 0
    known: dict[int, KnownTask] = field(default_factory=dict)
    """Number of an earlier task -> what is kept of it."""
    window: list[Tensor] = field(default_factory=list)
    """Vectors of the last batches: of a task that may have begun with one of them, and of what came before."""
    ungrouped: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Vectors of the last batch that wait for the rest of their group."""
    bins: list[Tensor] = field(default_factory=list)
    """Binned scores of the last batches, since the test began."""
    density: Density | None = None
    """Of the present task's samples; None until there are enough of them."""
    calibration: Calibration | None = None
    test: TwoSidedTest = field(default_factory=TwoSidedTest)
    began: int = 0
    """Number of the first batch that the present test has seen."""
    alarm: int | None = None
    """Where the change is that an alarm was raised for, until it is told what follows it."""
    raised: int = 0
    """Number of the batch that raised it."""
    ties: torch.Generator = field(default_factory=torch.Generator)


def scores(density: Density, vectors: Tensor) -> Tensor:
    """Return how unusual each group of samples is: minus the logarithm of the density at its mean, n // GROUP.

    Every sample of a narrow task may be a usual one of a wide task, but the mean of some is not.
    """
    groups = len(vectors) // GROUP
    return -density.log_density(vectors[: groups * GROUP].unflatten(0, (groups, GROUP)).mean(1))


def at_least(batches: list[Tensor], count: int, samples: int) -> list[Tensor]:
    """Return the first ``count`` batches, or more until they have this many samples.

    >>> [len(batch) for batch in at_least([torch.zeros(5), torch.zeros(4), torch.zeros(3)], 1, samples=6)]
    [5, 4]
    """
    while count < len(batches) and sum(map(len, batches[:count])) < samples:
        count += 1
    return batches[:count]


@dataclass(eq=False, repr=False)
class Boundaries(WithSettings):
    """Notice the boundaries of tasks in a stream of batches, from the inputs of the model's first layer.

    The first ``warm_up`` samples of a task fit a density; from then on, a sequential test watches how usual groups of
    three samples are. Samples of one task must come in random order.

    Args:
        learner: Any method around a model; its weights and memory are not used.

    >>> import cuber
    >>> boundaries = Boundaries(cuber.CUBER(torch.nn.Linear(4, 2)), warm_up=40)
    >>> random = torch.Generator().manual_seed(0)
    >>> stream = [torch.randn(10, 4, generator=random) + 5 * (step >= 30) for step in range(40)]
    >>> observed = [boundaries.observe(batch) for batch in stream]
    >>> [(step, seen.kind, seen.task, seen.change) for step, seen in enumerate(observed) if seen.is_boundary]
    [(32, 'new', 1, 30)]
    >>> boundaries.task, boundaries.tasks, boundaries.batches, boundaries.settings["delay"]
    (1, 2, 40, 20)
    >>> again = Boundaries(boundaries.learner, warm_up=40)
    >>> again.load_state_dict(boundaries.state_dict())
    >>> again.memory_bytes() == boundaries.memory_bytes()
    True
    """

    learner: Method
    false_alarms: float = setting(
        0.001, "probability that a task is ever ended although its samples do not change", low=1e-9, high=0.5
    )
    delay: int = setting(20, "batches within which a new task should be noticed; what takes longer may be drift", low=1)
    warm_up: int = setting(200, "first samples of a task, which its density is fitted to", low=10)

    def __post_init__(self) -> None:
        check_settings(self)
        if not isinstance(self.learner, Method):
            raise CuberError(
                f"Boundaries takes a learner such as cuber.CUBER(model), not a {type(self.learner).__name__}"
            )
        if self.learner.is_detached:
            raise CuberError(DETACHED)
        if self.learner.joint:
            raise CuberError(f"{type(self.learner).__name__} learns all tasks at once: there are no boundaries to find")
        self._first_layer = FirstLayer(self.learner)
        self._state = _State(self.learner.tasks, self.learner.tasks + 1)
        self._state.ties.manual_seed(0)

    @property
    def task(self) -> int:
        """Number of the task that the stream is in; new tasks are numbered in the order in which they were found."""
        return self._state.task

    @property
    def tasks(self) -> int:
        """Number of tasks so far."""
        return self._state.tasks

    @property
    def batches(self) -> int:
        """Number of batches observed."""
        return self._state.batches

    @property
    def is_warming_up(self) -> bool:
        """Whether the present task still has too few samples for a density, so that no change can be noticed."""
        return self._state.density is None

    def observe(self, batch: Batch) -> Observation:
        """Look at the next batch of the stream, before or after training on it.

        Args:
            batch: ``(x, y)``, the inputs alone, or whatever the learner's ``forward=`` takes.

        Returns:
            Whether this batch has shown that another task has begun, which one, and since which batch.
        """
        if self.learner.is_detached:
            raise CuberError(DETACHED)
        if torch.is_inference_mode_enabled():
            raise CuberError("observe needs gradients: call it outside torch.inference_mode()")
        vectors, state = self._first_layer.describe(batch), self._state
        like = state.density.mean if state.density is not None else (state.window or [vectors])[0][0]
        if vectors.shape[1] != len(like):
            raise CuberError(
                f"batch {state.batches} has inputs of another shape, described by {vectors.shape[1]} numbers per "
                f"sample instead of {len(like)}: observe takes batches of one stream"
            )
        state.batches += 1
        state.window.append(vectors)
        if state.density is None or state.calibration is None:
            self._fit()
            return Observation(SAME, state.task)
        pending = torch.cat([state.ungrouped.reshape(-1, len(like)).to(vectors), vectors])
        state.ungrouped = pending[len(pending) // GROUP * GROUP :].clone()
        bins = state.calibration.bins(scores(state.density, pending))
        ties = torch.rand(len(bins), dtype=torch.float64, generator=state.ties)
        state.test.add(state.calibration.p_values(bins, ties, add=True))
        state.bins.append(bins)
        observation = self._judge()
        if observation.kind == SAME and state.alarm is None:
            self._trim()
        return observation

    def _trim(self) -> None:
        """Drop the batches that are too long ago to matter."""
        # A change is as long ago as the first half, and is compared with what came before it.
        most = len(at_least(self._state.window[::-1], 2 * self.delay, 2 * COMPARED))
        del self._state.window[:-most], self._state.bins[:-most]

    def _judge(self) -> Observation:
        """Return what follows from the evidence so far."""
        state, evidence = self._state, self._state.test.log_evidence
        if state.alarm is None:
            if evidence < self._enough:
                return Observation(SAME, state.task, log_evidence=evidence)
            state.alarm, state.raised = state.began + state.test.start, state.batches - 1
        change, after = state.alarm, state.batches - state.alarm
        before, batches = state.window[:-after], state.window[-after:]
        is_late = after > self.delay and sum(map(len, batches)) >= COMPARED
        if not self._is_abrupt(before, batches, otherwise=not is_late):
            if not is_late:
                return Observation(SAME, state.task, log_evidence=evidence)
            self._restart(state.batches - min(self.delay, len(state.window)))
            return Observation(DRIFT, state.task, change, evidence)
        # The change may be located a few batches too early, and those of the old task must not hide a known one. The
        # batch that raised the alarm came after the change.
        latest = torch.cat(batches[state.raised - state.batches :])
        if state.known and len(latest) < RECOGNIZED:
            return Observation(SAME, state.task, log_evidence=evidence)
        assert state.density is not None
        assert state.calibration is not None
        own = KnownTask(state.density, state.calibration.without(torch.cat(state.bins[-after:])))
        found = self._recognize(latest)
        state.known.setdefault(state.task, own)
        kind = NEW if found is None else KNOWN
        state.task = state.tasks if found is None else found
        state.tasks += found is None
        self._restart(change)
        return Observation(kind, state.task, change, evidence)

    def _is_abrupt(self, before: list[Tensor], batches: list[Tensor], *, otherwise: bool) -> bool:
        """Return whether the first batches differ from those just before them, as in a drift they do not.

        Args:
            before: batches before the change.
            batches: the batches since.
            otherwise: the answer where too few came before to compare with.
        """
        if sum(map(len, before)) < COMPARED:
            return otherwise
        last = torch.cat(at_least(before[::-1], self.delay, COMPARED)[::-1])
        first = torch.cat(at_least(batches, self.delay, COMPARED))
        density, held_out = Density.fit(last[::2]), last[1::2]
        calibration = Calibration.around(scores(density, held_out))
        return self._log_odds_against(density, calibration.including(scores(density, held_out)), first) >= self._enough

    def _recognize(self, vectors: Tensor) -> int | None:
        """Return the earlier task whose samples these can be, the likeliest of several; None: there is none."""
        against = {
            number: self._log_odds_against(known.density, known.calibration, vectors)
            for number, known in self._state.known.items()
            if number != self._state.task
        }
        found = min(against, key=lambda number: against[number], default=None)
        return found if found is not None and against[found] < self._enough else None

    @staticmethod
    def _log_odds_against(density: Density, calibration: Calibration, vectors: Tensor) -> float:
        """Return the logarithm of the bets against samples being those that a density was fitted to."""
        bins = calibration.bins(scores(density, vectors))
        return log_odds_against(calibration.p_values(bins, torch.full((len(bins),), 0.5), add=False))

    @property
    def _enough(self) -> float:
        """Logarithm of the evidence that an alarm needs."""
        return -math.log(self.false_alarms)

    def _restart(self, change: int) -> None:
        """Begin a new test, with the batches since ``change`` as the first of its density."""
        state = self._state
        del state.window[: len(state.window) - (state.batches - change)]
        state.density = state.calibration = state.alarm = None
        self._fit()

    def _fit(self) -> None:
        """Fit the density of the present task, if there are enough samples."""
        state = self._state
        vectors = torch.cat(state.window)
        if len(vectors) < self.warm_up:
            return
        state.density = Density.fit(vectors)
        own = scores(state.density, vectors)
        if not bool(own.isfinite().all()):
            raise CuberError(
                f"the inputs of the batches up to {state.batches - 1} are too large for a density: scale them"
            )
        state.calibration = Calibration.around(own)
        state.test, state.began, state.bins = TwoSidedTest(), state.batches, []
        state.ungrouped = vectors[:0]
        self._trim()

    # Saving, loading and memory

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything that the next answers depend on, as plain values and tensors."""
        return copy.deepcopy({"settings": self.settings, "state": to_plain(self._state)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Args:
            state: what ``state_dict()`` of one with the same settings returned.
        """
        names = {field.name for field in dataclasses.fields(_State)}
        values = state.get("state") if isinstance(state, dict) else None
        if not isinstance(values, dict) or values.keys() != names or "settings" not in state:
            raise CuberError("this is not a state of Boundaries: save boundaries.state_dict()")
        if state["settings"] != self.settings:
            raise CuberError(
                f"this state was saved with the settings {state['settings']}, not {self.settings}: choose the same"
            )
        self._state = from_plain(_State, copy.deepcopy(state["state"]), torch.device("cpu"))

    def memory_bytes(self) -> dict[str, int]:
        """Return the bytes kept, by kind: "tasks" to recognize them, and what belongs to the present test."""
        known = nbytes(to_plain(self._state.known))
        return {"tasks": known, "test": nbytes(to_plain(self._state)) - known}

    @property
    def settings(self) -> dict[str, float]:
        """The settings by name."""
        return {name: getattr(self, name) for name in settings_of(type(self))}

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"Boundaries({type(self.learner).__name__}, {values}): task {self.task} after {self.batches} batches"
