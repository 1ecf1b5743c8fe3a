"""The moments of training at which a continual learner may act, and what all learners share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.utils.hooks import RemovableHandle

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.checks import check_loss, check_task, check_trains
from cuber.core.device import device_of, full_precision
from cuber.core.freezing import Freezer, claim, release
from cuber.core.optimizer_hooks import maximizes, minimized, unscale
from cuber.core.settings import check_settings, setting, settings_of
from cuber.core.snapshot import Snapshot
from cuber.core.state_checks import check_saved
from cuber.errors import CuberError
from cuber.layers import Normalization, Statistics, evaluation_mode, strip_gates
from cuber.networks.heads import heads_of, other_head_parameters

LossFunction = Callable[[Any, Any], Tensor]
Forward = Callable[[nn.Module, Batch], Tensor]


@dataclass(eq=False, repr=False)
class Method:
    """A learner around a model: call its verbs at the moments of training that they are named after.

    A method of your own overrides the moments it cares about (``_start``, ``before_step`` when the gradients are there,
    ``after_step``, ``end_epoch``, ``_finish``) and what it must remember (``_state``, ``_restore``, ``memory_bytes``).
    """

    joint: ClassVar[bool] = False
    """Whether all tasks are learnt at once, from batches of ``(x, y, task)``."""

    model: nn.Module
    norm_statistics: str = setting(
        "task",
        "running statistics of batch norm: kept per task, or each batch its own (the paper's way)",
        choices=("task", "batch"),
    )
    forward: Forward | None = field(default=None, kw_only=True)
    """``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` will not do."""

    def __post_init__(self) -> None:
        check_settings(self)
        if not isinstance(self.model, nn.Module):
            raise CuberError(f"{type(self).__name__} takes an nn.Module, not a {type(self.model).__name__}")
        # torch.compile wraps a model; what it compiles is inside, and that is what we hold on to.
        self.model = getattr(self.model, "_orig_mod", self.model)
        claim(self.model, self)
        strip_gates(self.model)  # a copy of a model comes with what the learner of the original had put there
        self._freezer = Freezer(self.model)
        self.tasks = 0
        """How many tasks have been learnt."""
        self.task: int | None = None
        """The task being learnt; None between tasks."""
        self.at_once = 1
        """How many tasks are learnt from one ``begin_task`` to its ``end_task``."""
        self.epoch = 0
        self.steps_per_epoch: int | None = None
        """In the present task; None where nobody can know."""
        self.statistics: list[Statistics] = []
        self._shown: int | None = None
        self._sample: list[Batch] = []
        self._loss_fn: LossFunction | None = None
        self._wrapped: dict[Optimizer, list[RemovableHandle]] = {}
        self._resumed = self._detached = False
        self._views = 0
        self._normalization = Normalization(self.model, self.norm_statistics)

    # The moments of training

    def begin_task(
        self, loader: Iterable[Batch], loss_fn: LossFunction | None = None, *, steps: int | None = None
    ) -> None:
        """Before the first step of a task; ``loss_fn(output, target)`` is a mean over the batch.

        ``steps`` is the number of steps in an epoch, where it is another than the number of batches in ``loader``.
        """
        self._require_attached("begin_task")
        batches.check_loader(loader, "begin_task")
        if self.task is not None:
            raise CuberError(f"task {self.task} has begun already: call end_task before the next begin_task")
        if loss_fn is None and self.forward is None:
            raise CuberError("begin_task needs loss_fn(output, target), or the learner a forward=")
        self._sample = self.take(loader)
        self._loss_fn = loss_fn
        self.steps_per_epoch = batches.steps(loader) if steps is None else steps
        self._normalization = Normalization(self.model, self.norm_statistics)
        shown, statistics = self._shown, self._normalization.statistics()
        try:
            self._show(self.tasks)
            self._freeze()
            self._first_look()
            self._start()
        except BaseException:
            self._leave_task()
            self._freezer.thaw()
            self._show(shown)
            self._normalization.restore(statistics)
            raise
        self.task, self.epoch = self.tasks, 0

    def wrap(self, optimizer: Optimizer) -> Optimizer:
        """The same optimizer, whose steps this learner now sees; once per task, after ``begin_task``."""
        self._require_task("wrap")
        if not isinstance(optimizer, Optimizer):
            raise CuberError(f"wrap takes a torch optimizer, not a {type(optimizer).__name__}")
        if optimizer not in self._wrapped:
            self._freezer.warn_of_thawed()
            self._check_optimizer(optimizer)
            if isinstance(optimizer, LBFGS) and not self._resumed:
                # Its history belongs to the last task's loss, and would move what that task trained.
                optimizer.state.clear()
            self._wrapped[optimizer] = list(self._hooks(optimizer))
        return optimizer

    def _hooks(self, optimizer: Optimizer) -> Iterator[RemovableHandle]:
        """What sees the steps, for those moments that the method cares about: a step may take half a millisecond."""
        if getattr(self.before_step, "__func__", None) is not Method.before_step:
            yield optimizer.register_step_pre_hook(self._on_step)
        if getattr(self.after_step, "__func__", None) is not Method.after_step:
            yield optimizer.register_step_post_hook(self._after_step)

    def before_step(self, optimizer: Optimizer) -> None:
        """Gradients are there, the step is not: change them."""

    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        """What these changes are the gradient of, at the present weights: for those who step with a closure."""
        return None

    def after_step(self, optimizer: Optimizer) -> None:
        """The optimizer has changed the weights."""

    def end_epoch(self) -> None:
        """After each pass over the task's training data."""
        self._require_task("end_epoch")
        self.epoch += 1

    def end_task(self, loader: Iterable[Batch]) -> None:
        """After the last step of a task, with the weights that are to be kept."""
        self._require_task("end_task")
        self._require_attached("end_task")
        batches.check_loader(loader, "end_task")
        if not self._wrapped:
            raise CuberError(
                "end_task: no optimizer was wrapped in this task, so nothing was protected; "
                "train with optimizer = learner.wrap(optimizer)"
            )
        self._freezer.warn_of_thawed()
        self._finish(loader)
        self.statistics += [self._normalization.statistics()] * self.at_once
        self.tasks += self.at_once
        self._leave_task()
        self._show(self.tasks - 1)

    # What trains, and how the model is seen

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What the present task trains, by name."""
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def parameters(self) -> list[nn.Parameter]:
        """What the present task trains: give it to the optimizer."""
        return [parameter for _, parameter in self.named_parameters()]

    @contextmanager
    def as_task(self, task: int | None) -> Iterator[nn.Module]:
        """While open, the model answers as it does for ``task``; None: with its bare weights, the head unchanged."""
        if self._detached:
            raise CuberError("this learner has let go of its model (detach): make a new one")
        if task is not None:
            check_task(task, known=self.tasks + (self.at_once if self.task is not None else 0))
        shown, statistics = self._shown, self._normalization.statistics()
        self._views += 1
        try:
            self._show(task)
            yield self.model
        finally:
            self._views -= 1
            self._show(shown)
            self._normalization.restore(statistics)

    def snapshot(self) -> Snapshot:
        """A copy of all that training this task changes, scalings and buffers included: ``take()``, ``restore()``."""
        return Snapshot(self)

    def detach(self) -> None:
        """Let go of the model: it is as it was before, with the weights it has now."""
        self._leave_task()
        self._freezer.thaw()
        self._normalization.detach()
        self._detached = True
        release(self.model)

    # What is remembered

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything the learner must remember, as plain values and tensors (not the model's weights)."""
        return copy.deepcopy(self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "method": type(self).__name__,
            "model": {name: list(p.shape) for name, p in self.model.named_parameters()},
            "tasks": self.tasks,
            "statistics": [dict(statistics) for statistics in self.statistics],
            "task": self.task,
            "epoch": self.epoch,
            "steps_per_epoch": self.steps_per_epoch,
            "sample": self._sample,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember what another learner did; in the middle of a task, go on with ``resume_task``."""
        self._require_attached("load_state_dict")
        check_saved(state, self._state())
        self._check_state(state)
        self._leave_task()
        self._freezer.thaw()
        self.tasks, self.task, self.epoch = state["tasks"], state["task"], state["epoch"]
        self.steps_per_epoch = state["steps_per_epoch"]
        self.statistics = [dict(statistics) for statistics in state["statistics"]]
        self._sample = state["sample"]
        self._restore(state)
        self._show(self.tasks if self.task is not None else self.tasks - 1 if self.tasks else None)
        if self.task is not None:
            self._freeze()

    def resume_task(self, loss_fn: LossFunction | None = None) -> None:
        """Go on with a task in whose middle ``load_state_dict`` has put us."""
        self._require_task("resume_task")
        self._loss_fn, self._resumed = loss_fn, True

    def memory_bytes(self) -> dict[str, int]:
        """The bytes kept between tasks, by kind."""
        heads = sum(head.nbytes for multi in heads_of(self.model) for head in multi.heads[: self.tasks].parameters())
        statistics = {id(tensor): tensor.nbytes for kept in self.statistics for tensor in kept.values()}
        return {"heads": heads, "statistics": sum(statistics.values())}

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in settings_of(self))
        state = f"learning task {self.task}" if self.task is not None else f"{self.tasks} tasks learnt"
        return "\n  ".join([f"{type(self).__name__}({values}): {state}", *self._describe()])

    # What methods override or use

    @property
    def sample_size(self) -> int:
        """How many of a new task's samples are looked at before it is learnt."""
        return 256

    def loss(self, batch: Batch) -> Tensor:
        """The loss of a batch, differentiable, at the weights that the model now shows."""
        if self.forward is not None:
            return self.forward(self.model, batch)
        if not (isinstance(batch, list | tuple) and len(batch) == 2):
            raise CuberError(
                f"the loader yields a {type(batch).__name__} where (input, target) is expected: "
                "give the learner a forward=lambda model, batch: loss"
            )
        x, y = batches.to(batch, self.device)
        return self.loss_fn(self.model(x), y)

    @property
    def loss_fn(self) -> LossFunction:
        """The one that ``begin_task`` or ``resume_task`` was given."""
        if self._loss_fn is None:
            raise CuberError("the loss is not known after load_state_dict: call resume_task(loss_fn) first")
        return self._loss_fn

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    def take(self, loader: Iterable[Batch]) -> list[Batch]:
        """What is looked at of a new task's samples before it is learnt."""
        return batches.take(loader, self.sample_size)

    def _start(self) -> None:
        """A task begins: the model shows it, what does not belong to it is frozen. Raise to call it off."""

    def _finish(self, loader: Iterable[Batch]) -> None:
        """A task has been learnt: remember what must be. Raise before anything is changed."""

    def _weights_restored(self) -> None:
        """A snapshot has put back what training had changed."""

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise unless the method's own part of a state dict is one that it can take over."""

    def _restore(self, state: dict[str, Any]) -> None:
        """Take over the method's own part of a state dict."""

    def _show(self, task: int | None) -> None:
        """Let the model answer for a task."""
        self._shown = task
        if task is None:
            return
        for multi_head in heads_of(self.model):
            multi_head.select_task(task)
        if task < len(self.statistics):
            self._normalization.restore(self.statistics[task])

    def _freeze(self) -> None:
        """Stop the training of what is not the new task's to train: the heads of the others."""
        self._freezer.thaw()
        self._freezer.freeze(other_head_parameters(self.model, range(self.tasks, self.tasks + self.at_once)))

    def _check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise unless this optimizer trains what the task needs."""
        check_trains(optimizer, self.parameters())

    def _describe(self) -> list[str]:
        """Lines for ``repr`` on what the learner holds."""
        return []

    def _require_attached(self, verb: str) -> None:
        if self._detached:
            raise CuberError("this learner has let go of its model (detach): make a new one")
        if self._views:
            raise CuberError(f"{verb} inside as_task, which would then show the old task again: leave the block first")
        if torch.is_inference_mode_enabled():
            raise CuberError(f"{verb} needs gradients: call it outside torch.inference_mode()")

    def _require_task(self, verb: str) -> None:
        if self.task is None:
            raise CuberError(f"{verb} before begin_task: call begin_task(loader, loss_fn) first")

    def _leave_task(self) -> None:
        for handles in self._wrapped.values():
            for handle in handles:
                handle.remove()
        self._wrapped, self._sample = {}, []
        self._resumed = False
        self.task = None

    def _on_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            unscale(optimizer)
            with full_precision(self.device), minimized(optimizer):
                self.before_step(optimizer)
            return None

        # The gradients come into being inside the step (LBFGS asks for them many times): act there.
        def guarded() -> Any:
            loss = closure()
            with full_precision(self.device), minimized(optimizer):
                self.before_step(optimizer)
                added = self.added_loss(optimizer)
            if added is None or loss is None:
                return loss
            return loss - added if maximizes(optimizer) else loss + added

        return (args[0],), {**kwargs, "closure": guarded}

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        with full_precision(self.device):
            self.after_step(optimizer)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_wrapped": {}}  # the hooks stay with the optimizer of the original

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._detached:
            claim(self.model, self)

    def _first_look(self) -> None:
        """Try the new task's samples on the model: normalization statistics, and every error that would come."""
        estimated = self._normalization.trained_layers(self.model)
        with torch.no_grad(), evaluation_mode(self.model):
            loss = self._try_loss(self._sample[0], "first batch")
            if self.tasks and self.norm_statistics == "task" and estimated:
                with self._normalization.estimating(estimated):
                    for batch in self._sample[: max(1, len(self._sample) - 1)]:
                        self._try_loss(batch, "batches")
        check_loss(loss, self.tasks)

    def _try_loss(self, batch: Batch, which: str) -> Tensor:
        """The loss, where whatever the user's model and loss may raise becomes one sentence."""
        try:
            return self.loss(batch)
        except CuberError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            raise CuberError(
                f"task {self.tasks}: the model and the loss cannot take the loader's {which}: {reason}"
            ) from error
