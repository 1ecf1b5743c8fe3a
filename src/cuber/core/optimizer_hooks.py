"""Everything that depends on the optimizer: hooks around its steps, closures, loss scaling, maximization, restoring.

Methods see gradients of a loss that is minimized, on its own scale, once per step, whatever the optimizer does. Weights
that an optimizer has moved along protected directions are moved back.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from cuber.core import distributed
from cuber.core.rows import RowMemory
from cuber.errors import CuberError, CuberWarning
from cuber.layers.protected import ProtectedLayer
from cuber.subspace import full_precision

if TYPE_CHECKING:
    from cuber.core.learner import Method


class HasParameters(Protocol):
    """Anything that trains parameters."""

    @property
    def parameters(self) -> list[nn.Parameter]: ...


Trained = TypeVar("Trained", bound=HasParameters)

STEPS_TO_RESTORE = 1000
"""Rounding adds up: protected directions are restored after this many steps, and after each epoch."""


class OptimizerHooks:
    """Calls a method's ``before_step`` and ``after_step`` around the steps of the optimizers that it has wrapped.

    Args:
        method: whose methods are called.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self.layers: dict[str, ProtectedLayer] = {}
        """Layers whose constraints hold whatever the optimizers do."""
        self.rows = RowMemory()
        """Rows of embeddings, which hold whatever the optimizers do."""
        self.steps = 0
        """In the present task."""
        self._acts: set[str] = set()
        """What the method does around a step, by the names of what it overrides."""
        self._handles: dict[Optimizer, list[RemovableHandle]] = {}
        self._pending: dict[str, set[int]] = {}
        """Layer -> the optimizers (by id) that hold a part of it and have not stepped since its gradient changed."""
        self._averaged = False
        """Whether ``average_gradients`` was called since the last step."""
        self._unchecked: set[int] = set()
        """Optimizers (by id) whose gradients have not been compared between processes in this task."""
        self._warned_of_view = False

    def wrap(self, optimizer: Optimizer, *, resumed: bool) -> None:
        """Register hooks on an optimizer, once.

        Args:
            resumed: whether the task goes on from a saved state; then the optimizer's own state belongs to it.
        """
        if optimizer in self._handles:
            return
        if isinstance(optimizer, LBFGS) and not resumed:
            optimizer.state.clear()  # its history belongs to the loss of the last task
        handles = []
        # A step of a small network takes half a millisecond: no hook that does more than it must.
        self._acts = {name for name in ("on_step_begin", "before_step", "after_step") if self._method.overrides(name)}
        if distributed.is_active():
            self._unchecked.add(id(optimizer))
        acts = "before_step" in self._acts or self.rows.held or distributed.is_active()
        handles.append(optimizer.register_step_pre_hook(self._before if acts else self._warn_of_view))
        if self.layers or self.rows.held or "after_step" in self._acts:
            handles.append(optimizer.register_step_post_hook(self._after))
        self._handles[optimizer] = handles

    def release(self) -> None:
        """Remove all hooks."""
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles, self._pending, self._averaged, self._unchecked = {}, {}, False, set()
        self._warned_of_view = False

    def average_gradients(self, parameters: Sequence[nn.Parameter], weight: float | None = None) -> None:
        """Replace gradients by the mean over all processes, before the next step of each optimizer."""
        if distributed.is_active():
            _average_gradients(parameters, weight)
            self._averaged = True

    def require_parameters(self, optimizer: Optimizer, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Raise unless this optimizer, or one wrapped before, holds all the named parameters."""
        held = {id(p) for known in (*self._handles, optimizer) for p in parameters_of(known)}
        missing = [name for name, parameter in parameters if id(parameter) not in held]
        if missing:
            raise CuberError(
                f"the optimizer lacks {len(missing)} parameters that this task adds, first '{missing[0]}': "
                "build it from learner.parameters(), after begin_task, or wrap the one that has them first"
            )

    def require_any(self, verb: str) -> None:
        """Raise if no optimizer was wrapped."""
        if not self._handles:
            raise CuberError(
                f"{verb}: no optimizer was wrapped in this task, so nothing was protected; "
                "train with optimizer = learner.wrap(optimizer)"
            )

    def is_first(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer was wrapped before all others."""
        return optimizer is next(iter(self._handles), optimizer)

    def is_last(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer was wrapped after all others: with its step, a step of all is complete."""
        return optimizer is next(reversed(self._handles), optimizer)

    def layers_to_change(
        self, optimizer: Optimizer, layers: Iterable[ProtectedLayer]
    ) -> Iterator[tuple[ProtectedLayer, float]]:
        """Iterate over the layers whose gradients have to be changed before a step, with the step's learning rate.

        Where several optimizers hold parts of one layer, its gradient changes once, when the first of them steps. So
        call it once per step; :func:`layers_with_rates` changes nothing.
        """
        for layer, lr in layers_with_rates(optimizer, layers):
            pending = self._pending.setdefault(layer.name, set())
            if id(optimizer) in pending:
                pending.remove(id(optimizer))
                continue
            own = set(map(id, layer.parameters)) if len(self._handles) > 1 else set()
            others = [other for other in self._handles if other is not optimizer and own]
            pending.update(id(other) for other in others if own & set(map(id, parameters_of(other))))
            yield layer, lr

    def restore_protected(self, *, only_drifted: bool = False) -> None:
        """Move weights back along protected directions: Adam and decay leave them, and rounding adds up."""
        with full_precision(self._method.device):
            for layer in self.layers.values():
                if layer.constraint is None or not layer.constraint.projector.rank or not layer.may_change:
                    continue
                if not only_drifted or layer.backend.has_drifted():
                    layer.backend.restore_protected()
        self.rows.restore()  # of weights that are embeddings too

    def forget_pending(self) -> None:
        """Expect all optimizers to see new gradients."""
        self._pending = {}

    def _warn_of_view(self, *_: Any) -> None:
        """Warn, once in a task, of a step while a task is shown."""
        if self._method.views and not self._warned_of_view:
            self._warned_of_view = True
            warnings.warn(
                f"a step inside as_task, where the model shows task {self._method.shown_task}: statistics and what "
                "else each task has its own values of are put back at the end of the block; leave it before you train",
                CuberWarning,
                stacklevel=4,
            )

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._warn_of_view()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if "on_step_begin" in self._acts:
            self._method.on_step_begin(optimizer)
        if closure is None:
            self._agree_on_gradients(optimizer)
            _unscale(optimizer)
            with full_precision(_device_of(optimizer)), _minimized(optimizer):
                self._method.before_step(optimizer)
                self.rows.mask_gradients()
            return None

        # The gradients appear inside the step (LBFGS evaluates the closure many times): act there.
        def guarded() -> Any:
            loss = closure()
            self._agree_on_gradients(optimizer)
            if isinstance(loss, Tensor) and distributed.is_active():
                loss = loss.detach().clone()
                distributed.average_([loss])  # line searches decide by it
            self.forget_pending()
            with full_precision(_device_of(optimizer)), _minimized(optimizer):
                self._method.before_step(optimizer)
                self.rows.mask_gradients()
                added = self._method.added_loss(optimizer)
            if added is None or loss is None:
                return loss
            return loss - added if _maximizes(optimizer) else loss + added

        return (args[0],), {**kwargs, "closure": guarded}

    def _agree_on_gradients(self, optimizer: Optimizer) -> None:
        """Average the gradients of what is no parameter of the model, and check that all are the same everywhere."""
        if not distributed.is_active():
            return
        names = {parameter: name for name, parameter in self._method.model.named_parameters()}
        if not self._averaged:  # DistributedDataParallel does not know scalings and the like
            _average_gradients([p for p in parameters_of(optimizer) if p not in names])
        self._averaged = False
        if id(optimizer) in self._unchecked:
            self._unchecked.remove(id(optimizer))
            gradients = {names.get(p, f"parameter {i}"): p.grad for i, p in enumerate(parameters_of(optimizer))}
            distributed.check_equal(gradients, distributed.DIFFERENT_GRADIENTS)

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        self.steps += 1
        with full_precision(_device_of(optimizer)):
            plain = is_plain_sgd(optimizer, self.layers.values())
            lr = float(optimizer.param_groups[0]["lr"]) if plain else None
            for layer in self.layers.values():
                layer.backend.after_step(lr)
            due = self.steps % STEPS_TO_RESTORE == 0
            if self.layers and (due or not plain):
                self.restore_protected(only_drifted=not due)
            if "after_step" in self._acts:
                self._method.after_step(optimizer)
            self.rows.restore()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}, "_pending": {}}  # hooks stay with the optimizers of the original


@torch.no_grad()
def _average_gradients(parameters: Sequence[nn.Parameter], weight: float | None = None) -> None:
    """Replace gradients by the mean over all processes; of those that only some processes have, too."""
    weight = 1 / distributed.processes() if weight is None else weight
    own = [None if p.grad is None else p.grad * weight for p in parameters]
    for parameter, gradient in zip(parameters, distributed.sum_present(own, parameters), strict=True):
        parameter.grad = gradient


def parameters_of(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """Iterate over the parameters of all groups."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def check_trains(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Raise unless an optimizer trains any of ``parameters``."""
    ours = set(map(id, parameters))
    if not any(id(parameter) in ours for parameter in parameters_of(optimizer)):
        raise CuberError(
            "the optimizer trains nothing of what this task trains: build it from learner.parameters(), "
            "after begin_task"
        )


def is_plain_sgd(optimizer: Optimizer, layers: Iterable[Any]) -> bool:
    """Return whether a step adds ``-lr * grad`` to ``layers``, each as a whole: no momentum, decay or maximization."""
    if type(optimizer) is not SGD or len(optimizer.param_groups) > 1:
        return False
    (group,) = optimizer.param_groups
    if group["momentum"] or group["weight_decay"] or group["maximize"]:
        return False
    held = set(map(id, group["params"]))

    def is_whole(layer: Any) -> bool:
        return not layer.with_bias or (id(layer.parameter) in held) == (id(layer.bias) in held)

    return all(not layer.is_parametrized and is_whole(layer) for layer in layers)


def layers_with_rates(optimizer: Optimizer, layers: Iterable[Trained]) -> Iterator[tuple[Trained, float]]:
    """Iterate over the layers that an optimizer holds and the last backward pass has reached, with learning rates."""
    held = set(map(id, parameters_of(optimizer)))
    for layer in layers:
        if any(id(parameter) in held and parameter.grad is not None for parameter in layer.parameters):
            yield layer, _largest_rate(optimizer, layer.parameters)


def _largest_rate(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> float:
    """Return the largest learning rate that an optimizer has for any of ``parameters``."""
    if len(optimizer.param_groups) == 1:
        return float(optimizer.param_groups[0].get("lr", 0))
    own = set(map(id, parameters))
    groups = [group for group in optimizer.param_groups if any(id(p) in own for p in group["params"])]
    return max((float(group.get("lr", 0)) for group in groups), default=0.0)


def _device_of(optimizer: Optimizer) -> torch.device:
    return next((parameter.device for parameter in parameters_of(optimizer)), torch.device("cpu"))


def _unscale(optimizer: Optimizer) -> None:
    """Divide gradients by the loss scale that a ``GradScaler`` leaves to fused optimizers."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    for parameter in parameters_of(optimizer):
        if parameter.grad is not None:
            parameter.grad.div_(scale.to(parameter.grad.device))
    optimizer.grad_scale = None  # type: ignore[attr-defined]


def _maximizes(optimizer: Optimizer) -> bool:
    return any(group.get("maximize") for group in optimizer.param_groups)


def _minimized(optimizer: Optimizer) -> Any:
    """While open, gradients are those of what is minimized, also where the optimizer maximizes."""
    return _negated(optimizer) if _maximizes(optimizer) else nullcontext()


@contextmanager
def _negated(optimizer: Optimizer) -> Iterator[None]:
    _negate(optimizer)
    try:
        yield
    finally:
        _negate(optimizer)


@torch.no_grad()
def _negate(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("maximize") else []:
            if parameter.grad is not None:
                parameter.grad.neg_()
