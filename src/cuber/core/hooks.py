"""What a method can override: the points of the training loop at which it is called."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from cuber.core.batches import Batch


class TrainingHooks:
    """Hooks of a method, in the order of the training loop; each does nothing here.

    >>> import cuber
    >>> class Clipped(cuber.Method):
    ...     "Plain training with gradients of at most 0.1."
    ...     def before_step(self, optimizer):
    ...         for parameter in self.parameters():
    ...             parameter.grad.clamp_(-0.1, 0.1)
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> learner = Clipped(model)
    >>> x, y = torch.ones(1, 1), torch.full((1, 1), 5.0)
    >>> learner.begin_task([(x, y)], nn.functional.mse_loss)
    >>> optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=1.0))
    >>> nn.functional.mse_loss(model(x), y).backward()
    >>> optimizer.step()
    >>> round(model.weight.item(), 4)
    0.1
    """

    def on_task_begin(self) -> None:
        """A task begins: the model shows it, other tasks' parameters are frozen. Raise to refuse the task."""

    def on_step_begin(self, optimizer: Optimizer) -> None:
        """An optimizer begins a step; gradients that a closure computes do not exist yet. Needs ``before_step``."""

    def before_step(self, optimizer: Optimizer) -> None:
        """The gradients are complete and the step is not made: change ``parameter.grad``."""

    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        """Return the term whose gradient ``before_step`` has added, for optimizers that step with a closure."""
        return None

    def after_step(self, optimizer: Optimizer) -> None:
        """The optimizer has changed the weights."""

    def on_epoch_end(self) -> None:
        """A pass over the training data has ended."""

    def weights_to_keep(self) -> AbstractContextManager[None]:
        """Return a context manager in which the model has the weights that ``end_task`` would keep now."""
        return nullcontext()

    def observe_task(self, loader: Iterable[Batch]) -> None:
        """A task has been learned: look at all of its data, before ``on_task_end``; call ``super()`` first."""

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        """A task has been learned: remember what later tasks need of its data. Raise before anything is changed."""

    def per_task_parameters(self) -> Iterable[str]:
        """Return the names of trained parameters that each task has its own values of, from this task on."""
        return ()

    def unprotected_parameters(self) -> dict[str, str] | None:
        """Return the trained parameters that old tasks may lose by, with the reason; None: the method protects none."""
        return None

    def check_state(self, remembered: dict[str, Any]) -> None:
        """Raise unless the learner can load this part of a saved state."""

    def on_state_loaded(self) -> None:
        """All that is declared in ``remembered``, and in a task in ``in_task``, has been loaded."""

    def on_weights_restored(self) -> None:
        """A snapshot was restored."""

    def on_task_left(self) -> None:
        """A task has ended or was refused: drop what belongs to it."""

    def on_detach(self) -> None:
        """The learner is being removed: undo what it has changed in the model."""

    def describe(self) -> list[str]:
        """Return lines that ``repr`` adds."""
        return []
