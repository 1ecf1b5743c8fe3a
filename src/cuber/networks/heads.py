"""One output layer per task, on any backbone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from cuber.errors import CuberError


class MultiHead(nn.Module):
    """A backbone with one linear head per task. Learners select the head.

    A head is trained with its task only; its gradients are never projected.

    Args:
        backbone: returns ``features`` numbers per sample.
        features: number of inputs of every head.
        classes_per_task: number of outputs of each head.
        bias: whether the heads have biases.

    >>> model = MultiHead(nn.Flatten(), features=64, classes_per_task=[2, 2, 3])
    >>> model.select_task(2)
    >>> model(torch.rand(5, 8, 8)).shape
    torch.Size([5, 3])
    >>> model.add_head(4)
    >>> len(model.heads)
    4
    """

    def __init__(
        self, backbone: nn.Module, features: int, classes_per_task: Sequence[int], *, bias: bool = True
    ) -> None:
        super().__init__()
        counts = classes_per_task if isinstance(classes_per_task, Sequence) else [None]
        if any(not isinstance(classes, int) or classes < 1 for classes in counts):
            raise CuberError(
                f"MultiHead takes the number of classes of every task, such as [10, 10, 10], not {classes_per_task!r}"
            )
        self.backbone = backbone
        self.features = features
        self.heads = nn.ModuleList(nn.Linear(features, classes, bias=bias) for classes in classes_per_task)
        self.task = 0

    def add_head(self, classes: int, *, bias: bool = True) -> None:
        """Add a head for another task, on the model's device.

        Args:
            classes: number of outputs.
            bias: whether the head has a bias.
        """
        head = nn.Linear(self.features, classes, bias=bias)
        like = next(self.parameters(), head.weight)
        self.heads.append(head.to(like))

    def select_task(self, task: int) -> None:
        """Use the head of a task from now on; learners do this.

        Args:
            task: number of the task, from 0.

        Raises:
            CuberError: there is no head for the task.
        """
        if not 0 <= task < len(self.heads):
            raise CuberError(
                f"MultiHead has heads for tasks 0 to {len(self.heads) - 1} but not for task {task}: "
                "name all tasks in classes_per_task, or call add_head(classes)"
            )
        self.task = task

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[self.task](self.backbone(x))


class HeadCopies(MultiHead):
    """An output layer of a model, such as ``model.classifier``, with one copy of it per task.

    Args:
        module: the head of the first task.
    """

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.backbone = nn.Identity()
        self.heads = nn.ModuleList([module])
        self.task = 0

    def add_copy(self) -> None:
        """Add a head of the same shape with new initial weights."""
        copied = copy.deepcopy(self.heads[0]).requires_grad_(True)
        for module in copied.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        self.heads.append(copied)


def keep_selected_copies(model: nn.Module) -> None:
    """Put the selected head of each HeadCopies in its place, as a layer of the model."""
    for name, module in list(model.named_modules()):
        if isinstance(module, HeadCopies):
            model.set_submodule(name, module.heads[module.task])


def heads_of(model: nn.Module) -> list[MultiHead]:
    """Return all MultiHead modules of a model, including the model itself."""
    return [module for module in model.modules() if isinstance(module, MultiHead)]


def head_parameters(model: nn.Module) -> Iterable[nn.Parameter]:
    """Yield the parameters of all heads."""
    for multi_head in heads_of(model):
        yield from multi_head.heads.parameters()


def other_head_parameters(model: nn.Module, tasks: Collection[int]) -> Iterable[nn.Parameter]:
    """Return the parameters of the heads that do not belong to the given tasks, without those shared with them."""
    own = {id(parameter) for multi in heads_of(model) for task in tasks for parameter in multi.heads[task].parameters()}
    return (parameter for parameter in head_parameters(model) if id(parameter) not in own)


def can_mix(model: nn.Module) -> bool:
    """Return whether one forward pass can serve several tasks: heads, if there are any, come last and nothing else."""
    own = "forward" in vars(model) or bool(model._forward_hooks) or bool(model._forward_pre_hooks)
    return all(multi is model and type(multi).forward is MultiHead.forward and not own for multi in heads_of(model))


def mixed_loss(model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], x: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
    """Return the mean loss over a batch, where ``tasks`` has the task number of each sample."""
    if not isinstance(model, MultiHead):
        return loss_fn(model(x), y)
    features = model.backbone(x)
    total = features.new_zeros(())
    for task in tasks.unique().tolist():
        own = tasks == task
        total = total + loss_fn(model.heads[task](features[own]), y[own]) * (int(own.sum()) / len(tasks))
    return total
