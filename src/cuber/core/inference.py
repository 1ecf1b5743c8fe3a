"""Infer the task of each sample from the densities of inputs that tasks have left, and answer for that task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from cuber.core import batches
from cuber.core.misuse import DETACHED
from cuber.core.settings import is_number, short
from cuber.core.views import showing, viewing
from cuber.errors import CuberError
from cuber.layers import evaluation_mode, normalized_by_batch
from cuber.subspace import TaskDensities

if TYPE_CHECKING:
    from cuber.core.learner import Method

NONE_OF_THESE = -1
"""Instead of the number of a task."""


class InferredTasks(NamedTuple):
    """The tasks of samples, as ``infer_task`` returns them.

    Args:
        task: n: the most probable task of each sample; -1 for samples that are unusual in all tasks.
        probability: n: the probability of the most probable task.
        probabilities: n x tasks: of all tasks; each row adds up to 1.

    >>> InferredTasks(torch.tensor([1]), torch.tensor([0.9]), torch.tensor([[0.1, 0.9]])).task
    tensor([1])
    """

    task: Tensor
    probability: Tensor
    probabilities: Tensor


class Prediction(NamedTuple):
    """What ``predict`` returns.

    Args:
        output: What the model returns for each sample as its own task; with heads of different widths filled up with
            -inf.
        task: n: as in :class:`InferredTasks`; samples of none are answered for the most probable task.
        probability: n: the probability of the most probable task.

    >>> Prediction(torch.tensor([[0.2, 1.3]]), torch.tensor([1]), torch.tensor([0.9])).output.argmax(1)
    tensor([1])
    """

    output: Tensor
    task: Tensor
    probability: Tensor


class Call(NamedTuple):
    """The arguments of a model's forward pass."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]

    @classmethod
    def of(cls, x: Any) -> Call:
        """Return the call of a model on a tensor, a tuple of arguments, or a mapping of named ones."""
        if isinstance(x, Call):
            return x
        if isinstance(x, Mapping):
            return cls((), dict(x))
        return cls(tuple(x) if isinstance(x, list | tuple) else (x,), {})

    def as_batches(self, model: nn.Module) -> list[Any]:
        """Return the call in each form in which a loader may yield it: a mapping, inputs and targets, or both."""
        parameters = inspect.signature(type(model).forward).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD][1:]
        numbered = dict(enumerate(self.arguments[len(names) :]))  # those of a model that takes any number
        mapping = dict(zip(names, self.arguments, strict=False)) | numbered | self.named
        return [mapping, (mapping, None), (*mapping.values(), None)]

    def run(self, model: nn.Module) -> Any:
        return model(*self.arguments, **self.named)

    def part(self, rows: Tensor) -> Call:
        """Return the call with some of the samples."""
        return batches.map_samples((self,), lambda tensor: tensor[rows])[0]


class TaskInference:
    """Answers of a learner for samples whose task is not known."""

    densities: Any = None
    """A :class:`TaskDensities` in methods that remember how inputs are distributed."""

    @property
    def infers_tasks(self: Any) -> bool:
        """Whether ``infer_task`` can answer, or will after the first task."""
        if self.densities is None or not self.task_inference or self.joint:
            return False
        return not self.tasks or any(self.densities.densities)

    def infer_task(self: Any, x: Any, *, false_alarms: float = 0.01) -> InferredTasks:
        """Return the most probable task of each sample.

        Args:
            x: what the model takes: a batch as a tensor, a tuple of arguments, or a mapping of named ones.
            false_alarms: the share of a task's own samples that may be taken for samples of none; 0: none of them.
                A task needs at least ``1 / false_alarms`` samples in training; one with fewer accepts every sample.

        Raises:
            CuberError: no task was learned, the samples have another shape, or the method keeps no densities.
        """
        require_densities(self, "infer_task")
        if not (is_number(false_alarms) and 0 <= false_alarms < 1):
            raise CuberError(
                f"infer_task: false_alarms must be a number of at least 0 and below 1, not {short(false_alarms)}"
            )
        densities: TaskDensities = self.densities
        logs = densities.log_densities(self.describe_inputs(x))
        probabilities = densities.probabilities(logs)
        probability, task = probabilities.max(1)
        usual = densities.accepted(logs, false_alarms).any(1)
        return InferredTasks(task.where(usual, NONE_OF_THESE), probability, probabilities)

    @torch.no_grad()
    def predict(self: Any, x: Any, *, false_alarms: float = 0.01) -> Prediction:
        """Return what the model answers for the inferred task of each sample, in evaluation mode.

        Args:
            x: as for ``infer_task``.
            false_alarms: as for ``infer_task``.
        """
        inferred = self.infer_task(x, false_alarms=false_alarms)
        with evaluation_mode(self.model), batches.explained("predict: the model cannot answer these samples"):
            output = answer(self, Call.of(batches.to(x, self.device)), inferred.probabilities.argmax(1))
        return Prediction(output, inferred.task, inferred.probability)


def require_densities(learner: Any, verb: str) -> None:
    """Raise unless a learner can infer tasks."""
    if learner.is_detached:
        raise CuberError(DETACHED)
    if learner.densities is None:
        raise CuberError(
            f"{verb}: {type(learner).__name__} keeps no densities of the inputs of its layers, so it cannot infer "
            "tasks: use GPM, TRGP, CUBER, SoftCUBER or LoRA"
        )
    if not learner.task_inference:
        raise CuberError(f"{verb}: the learner was made with task_inference=False, so it kept no densities of inputs")
    if not learner.tasks:
        raise CuberError(f"{verb}: no task has been learned yet: call end_task first")
    if not any(learner.densities.densities):
        raise CuberError(
            f"{verb}: the distribution of the tasks' inputs is not known: the model has no protected layer that sees a "
            "vector, sequence or image for each sample, or all tasks were learned with task_inference=False"
        )


def answer(learner: Method, call: Call, tasks: Tensor) -> Tensor:
    """Return the model's outputs with each sample answered for its own task: one forward pass for each task.

    A single sample of a task goes with its whole batch where batches may be normalized by their own statistics, which
    one sample does not have.
    """
    if not len(tasks):
        return call.run(learner.model)
    rows = {task: (tasks == task).nonzero().flatten() for task in tasks.unique().tolist()}
    fewest = 2 if learner.model.training or normalized_by_batch(learner.model) else 1
    outputs: list[Tensor] = []
    for task, own in rows.items():
        whole = len(rows) == 1 or len(own) < fewest
        with showing(learner, task):
            output = (call if whole else call.part(own)).run(learner.model)
        if not isinstance(output, Tensor) or len(output) != len(tasks if whole else own):
            raise CuberError("to infer tasks the model must return one tensor with a row for each sample")
        outputs.append(output[own] if whole else output)
    if outputs[0].dim() > 1:
        width = max(output.shape[-1] for output in outputs)
        outputs = [filled_up(output, width) for output in outputs]
    order = torch.cat(list(rows.values())).argsort()
    return torch.cat(outputs)[order] if len(outputs) > 1 else outputs[0]


def filled_up(output: Tensor, width: int) -> Tensor:
    """Return the outputs of a head with as many columns as the widest head has; classes that it lacks get -inf."""
    missing = width - output.shape[-1]
    return nn.functional.pad(output, (0, missing), value=-torch.inf) if missing else output


def with_wrong_class(output: Tensor, wrong: Tensor) -> Tensor:
    """Return outputs with one more class, which has the highest output in the rows that are wrong."""
    wider = filled_up(output, output.shape[-1] + 1)
    wider[wrong, ..., -1] = torch.inf
    return wider


class _NotCopied:
    """A forward pass that a copy of its module, such as an export, must not have."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._forward(*arguments, **named)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise CuberError("a model cannot be copied or saved inside as_task('infer'): leave the block first")


@contextmanager
def inferring(learner: Any, truth: int | None = None) -> Iterator[nn.Module]:
    """While open, a call of the learner's model answers each sample for its inferred task.

    Args:
        truth: for tests, the task that all samples belong to: where tasks have heads of their own, samples that are
            taken for another task get an additional class as their answer, which is never right.
    """
    require_densities(learner, "as_task('infer')")
    model: nn.Module = learner.model
    before = vars(model).get("forward")  # set by the learner, where the model itself is a protected layer

    def restore() -> None:
        del model.forward
        if before is not None:
            model.forward = before

    def forward(*arguments: Any, **named: Any) -> Any:
        restore()
        try:
            if learner.views > views:  # a task is shown inside the block
                return model.forward(*arguments, **named)
            call = Call(arguments, named)
            tasks = learner.infer_task(call).probabilities.argmax(1)
            output = answer(learner, call, tasks)
            return output if truth is None or not learner.heads else with_wrong_class(output, tasks != truth)
        finally:
            model.forward = inferred

    inferred = _NotCopied(forward)
    with viewing(learner):
        views = learner.views
        model.forward = inferred
        try:
            yield model
        finally:
            restore()
