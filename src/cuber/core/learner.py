"""The base class of all methods: the points of the training loop, and what every learner shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cuber.core import batches, distributed
from cuber.core.batches import Batch
from cuber.core.coverage import Coverage, describe
from cuber.core.detaching import detach
from cuber.core.export import export
from cuber.core.hooks import TrainingHooks
from cuber.core.inference import TaskInference, inferring
from cuber.core.misuse import check_known, require_attached, require_no_view, require_task
from cuber.core.optimizer_hooks import OptimizerHooks, check_trains
from cuber.core.provenance import warn_of_other_settings, warn_of_other_weights
from cuber.core.settings import WithSettings, check_settings, setting
from cuber.core.snapshot import Snapshot
from cuber.core.state import check_state, load, memory_bytes, move, save
from cuber.core.views import Shown, showing
from cuber.errors import CuberError
from cuber.layers.gates import strip_gates
from cuber.layers.model import Freezer, claim, evaluation_mode
from cuber.layers.normalization import Normalization, Statistics
from cuber.networks.heads import heads_of, other_head_parameters

LossFunction = Callable[[Any, Any], Tensor]
Forward = Callable[[nn.Module, Batch], Tensor]


@dataclass(eq=False, repr=False)
class Method(TaskInference, TrainingHooks, WithSettings):
    """A learner around a model. Call ``begin_task``, ``end_epoch`` and ``end_task`` at these points of your loop.

    A method of your own overrides what it needs of :class:`cuber.core.hooks.TrainingHooks`, and declares what it must
    remember in ``remembered``. What it does not override is plain training.

    Args:
        model: any ``nn.Module``; it stays the same object.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.

    >>> class Nothing(Method):
    ...     "Plain training on task after task."
    >>> Nothing(nn.Linear(4, 2)).tasks
    0
    """

    joint: ClassVar[bool] = False
    """Whether all tasks are learned at once, from batches of ``(x, y, task)``."""
    remembered: ClassVar[dict[str, Any]] = {"statistics": list[dict[str, Tensor]]}
    """Attribute -> type of what is kept between tasks; saved, loaded, moved to the model's device and counted."""
    in_task: ClassVar[dict[str, Any]] = {}
    """Attribute -> type of what is kept in the middle of a task only: saved and loaded, but not counted."""
    kinds: ClassVar[dict[str, str]] = {}
    """Attribute, or field of a remembered dataclass -> the name that ``memory_bytes`` counts it under."""

    model: nn.Module
    norm_statistics: str = setting(
        "task",
        "running statistics of batch norm: kept per task, or each batch its own (the paper's way)",
        choices=("task", "batch"),
    )
    forward: Forward | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_settings(self)
        if not isinstance(self.model, nn.Module):
            raise CuberError(f"{type(self).__name__} takes an nn.Module, not a {type(self.model).__name__}")
        self.model = distributed.unwrap(self.model)
        claim(self.model, self)
        strip_gates(self.model)  # a copy of a model comes with the gates of the original's learner
        self.freezer = Freezer(self.model)
        self.optimizers = OptimizerHooks(self)
        self.tasks = 0
        """Number of tasks learned."""
        self.task: int | None = None
        """The task being learned; None between tasks."""
        self.at_once = 1
        """Number of tasks learned between one ``begin_task`` and its ``end_task``."""
        self.epoch = 0
        self.steps_per_epoch: int | None = None
        """In the present task; None where the loader does not say."""
        self.sample: list[Batch] = []
        """The first samples of the present task."""
        self.statistics: list[Statistics] = []
        """Task -> its normalization statistics, and its values of parameters that are kept per task."""
        self._find_modules()
        self.shown_task: int | None = None
        """The task that the model answers for; None: with its bare weights."""
        self._loss_fn: LossFunction | None = None
        self._resumed = self.is_detached = False
        self.expected_weights: dict[str, Tensor] = {}
        """Samples of the weights that a loaded state belongs to, until they were compared."""
        self.views = 0
        """Number of ``as_task`` blocks that are open."""
        self.present_statistics: Statistics = {}
        """While one is open, those that the model had before, for the task being learned and for bare weights."""
        self.exported: set[int] = set()
        """Tasks that were exported with the present weights."""
        self.memory_device = self.device
        """Where all that is remembered is."""

    # For the training loop to call

    def begin_task(
        self, loader: Iterable[Batch], loss_fn: LossFunction | None = None, *, steps: int | None = None
    ) -> None:
        """Call before the first step of a task.

        Args:
            loader: the task's training data; read several times.
            loss_fn: ``loss_fn(output, target)``, a mean over the batch.
            steps: number of steps in an epoch, where it is not ``len(loader)``.

        Raises:
            CuberError: a task has begun already, or model, loss and loader do not fit each other.
        """
        require_attached(self, "begin_task")
        batches.check_loader(loader, "begin_task")
        if self.task is not None:
            raise CuberError(f"task {self.task} has begun already: call end_task before the next begin_task")
        if loss_fn is None and self.forward is None:
            raise CuberError("begin_task needs loss_fn(output, target), or the learner a forward=")
        if self.tasks == 0:  # as DistributedDataParallel does when it is made, which may be after begin_task
            distributed.broadcast_([*self.model.parameters(), *self.model.buffers()])
        warn_of_other_weights(self)
        self.sample = self.take(loader)
        self._loss_fn = loss_fn
        self.steps_per_epoch = distributed.broadcast(batches.steps(loader) if steps is None else steps)
        self._find_modules()
        move(self)
        before = Shown(self)
        try:
            self.show_task(self.tasks)
            self.freezer.thaw()
            self.freeze_parameters()
            self.try_sample()
            self.on_task_begin()
            self.normalization.keep(self.per_task_parameters(), self.statistics)
        except BaseException:
            self._leave_task()
            self.freezer.thaw()
            before.restore()
            raise
        self.task, self.epoch = self.tasks, 0

    def wrap(self, optimizer: Optimizer) -> Optimizer:
        """Let the learner act before and after each step of an optimizer; call once per task, after ``begin_task``.

        Args:
            optimizer: a torch optimizer over ``learner.parameters()``; several optimizers may be wrapped one by one.

        Returns:
            The same optimizer.
        """
        require_task(self, "wrap")
        if not isinstance(optimizer, Optimizer):
            raise CuberError(f"wrap takes a torch optimizer, not a {type(optimizer).__name__}")
        self.freezer.warn_of_thawed()
        self.check_optimizer(optimizer)
        self.optimizers.wrap(optimizer, resumed=self._resumed)
        return optimizer

    def end_epoch(self) -> None:
        """Call after each pass over the task's training data."""
        require_task(self, "end_epoch")
        require_attached(self, "end_epoch")
        self.optimizers.require_any("end_epoch")
        self.epoch += 1
        self.optimizers.forget_pending()
        distributed.average_(self.normalization.buffers())
        self.on_epoch_end()

    def end_task(self, loader: Iterable[Batch]) -> None:
        """Call after the last step of a task, with the weights that are to be kept.

        Args:
            loader: the task's training data; read several times.
        """
        require_task(self, "end_task")
        require_attached(self, "end_task")
        batches.check_loader(loader, "end_task")
        self.optimizers.require_any("end_task")
        self.freezer.warn_of_thawed()
        move(self)
        distributed.average_(self.normalization.buffers())
        distributed.check_equal(dict(self.named_parameters()), distributed.DIFFERENT_WEIGHTS)
        self.observe_task(loader)
        self.on_task_end(loader)
        self.statistics += [self.normalization.statistics()] * self.at_once
        self.tasks += self.at_once
        self._leave_task()
        self.show_task(self.tasks - 1)

    def parameters(self) -> list[nn.Parameter]:
        """Return what the present task trains; build the optimizer from it."""
        return [parameter for _, parameter in self.named_parameters()]

    def as_task(self, task: int | str | None) -> AbstractContextManager[nn.Module]:
        """Return a context manager in which the model answers as it does for ``task``.

        Args:
            task: number of the task, from 0; None: bare weights, the head unchanged; "infer": each sample of a batch
                is answered for the task that ``infer_task`` finds.

        Returns:
            A context manager that yields the model. The mode (training or evaluation) is not changed.
        """
        if task == "infer":
            return inferring(self)
        return showing(self, check_known(self, task))

    def export(self, task: int) -> nn.Module:
        """Return a copy of the model that answers for one task and does not need cuber.

        Args:
            task: number of the task, from 0.

        Returns:
            A module of the model's own class, in evaluation mode, with scalings and gates in its weights.
        """
        return export(self, task)

    def snapshot(self) -> Snapshot:
        """Copy all that training this task changes, scalings and buffers included, for early stopping.

        Returns:
            A copy. ``take()`` copies again, ``restore()`` copies back, before ``end_task``.
        """
        return Snapshot(self)

    def detach(self) -> None:
        """Remove the learner from the model, which keeps its present weights; ``export`` first what tasks need."""
        detach(self)

    def average_gradients(self, weight: float | None = None) -> None:
        """Call between ``backward()`` and ``step()`` in several processes without ``DistributedDataParallel``.

        Args:
            weight: the share of this process in the whole batch (default: all have the same).
        """
        self.optimizers.average_gradients(self.parameters(), weight)

    def loss(self, batch: Batch) -> Tensor:
        """Return the differentiable loss of a batch at the weights that the model now shows.

        Args:
            batch: ``(x, y)``, or whatever ``forward=`` takes.
        """
        if self.forward is not None:
            return self.forward(self.model, batch)
        batches.check_pair(batch)
        x, y = batches.to(batch, self.device)
        return self.loss_fn(self.model(x), y)

    @property
    def loss_fn(self) -> LossFunction:
        """The loss function that ``begin_task`` or ``resume_task`` was given."""
        if self._loss_fn is None:
            raise CuberError("the loss is not known after load_state_dict: call resume_task(loss_fn) first")
        return self._loss_fn

    @property
    def device(self) -> torch.device:
        """The device of the model's first parameter."""
        return batches.device_of(self.model)

    # Saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything the learner must remember, as plain values and tensors (not the weights)."""
        return save(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; in the middle of a task, call ``resume_task`` next.

        Args:
            state: what ``state_dict()`` of a learner with the same settings and layers returned.
        """
        require_attached(self, "load_state_dict")
        check_state(self, state)
        self.check_state(state["remembered"])
        warn_of_other_settings(self, state)
        self._leave_task()
        self.freezer.thaw()
        load(self, state)
        self._find_modules()
        self.on_state_loaded()
        self.show_task(self.tasks if self.task is not None else self.tasks - 1 if self.tasks else None)
        if self.task is not None:
            self.freezer.thaw()
            self.freeze_parameters()
            self.normalization.keep(self.per_task_parameters(), self.statistics)

    def resume_task(self, loss_fn: LossFunction | None = None) -> None:
        """Go on with the task in whose middle a loaded state was saved.

        Args:
            loss_fn: as for ``begin_task``.
        """
        require_task(self, "resume_task")
        warn_of_other_weights(self)
        self._loss_fn, self._resumed = loss_fn, True

    def memory_bytes(self) -> dict[str, int]:
        """Return the bytes kept between tasks, by kind.

        Returns:
            Kind -> bytes, such as ``{"bases": 14100, "heads": 8000}``.
        """
        heads = sum(head.nbytes for multi in self.heads for head in multi.heads[: self.tasks].parameters())
        return memory_bytes(self) | {"heads": heads}

    def __repr__(self) -> str:
        return describe(self)

    # For methods to override, besides the hooks

    def show_task(self, task: int | None) -> None:
        """Let the model answer for a task, with its head and statistics; None: bare weights; call ``super()`` first."""
        self.shown_task = task
        statistics = self.present_statistics
        if task is not None:
            for multi_head in self.heads:
                multi_head.select_task(task)
            if task < len(self.statistics):
                statistics = self.statistics[task]
        self.normalization.restore(statistics)

    def freeze_parameters(self) -> None:
        """Freeze what the new task must not train: the heads of other tasks; call ``super()`` first."""
        if self.heads:
            self.freezer.freeze(other_head_parameters(self.model, range(self.tasks, self.tasks + self.at_once)))

    def coverage(self) -> Coverage | None:
        """Return what becomes of the model's parameters; None: the method protects none."""
        return Coverage.of(self)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over what the present task trains, with names."""
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise unless an optimizer can train the present task."""
        check_trains(optimizer, self.parameters())

    def take(self, loader: Iterable[Batch]) -> list[Batch]:
        """Return the samples of a new task that the learner computes with before training begins."""
        return batches.take(loader, self.sample_size)

    @property
    def sample_size(self) -> int:
        """Number of samples that ``take`` takes."""
        return 256

    def try_sample(self) -> None:
        """Run the sample through model and loss: estimate normalization statistics, raise errors early."""
        estimated = self.normalization.trained_layers(self.model) if self.tasks else []
        with torch.no_grad(), evaluation_mode(self.model):
            batches.check_loss(self.try_loss(self.sample[0], "first batch"), self.tasks)
            with self.normalization.estimating(estimated):
                for batch in self.sample[: max(1, len(self.sample) - 1)] if estimated else []:
                    self.try_loss(batch, "batches")
        distributed.average_(self.normalization.buffers())

    def overrides(self, name: str) -> bool:
        """Return whether a method of the base class is overridden."""
        return getattr(getattr(self, name), "__func__", None) is not getattr(Method, name)

    def try_loss(self, batch: Batch, which: str) -> Tensor:
        """Return the loss of a batch; report whatever model and loss raise in one sentence."""
        with batches.explained(f"task {self.tasks}: the model and the loss cannot take the loader's {which}"):
            return self.loss(batch)

    def _find_modules(self) -> None:
        self.heads = heads_of(self.model)
        kept = (name for statistics in self.statistics for name in statistics)
        self.normalization = Normalization(self.model, self.norm_statistics, kept)

    def _leave_task(self) -> None:
        self.optimizers.release()
        self.on_task_left()
        self.sample, self._resumed, self.task, self.exported = [], False, None, set()

    def __getstate__(self) -> dict[str, Any]:
        require_no_view(self, "copying or saving a learner")
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self.is_detached:
            claim(self.model, self)
