"""What is measured: the paper's networks in the middle of their last task, in a bare loop and in our trainer.

The memory is as after the tasks before: random columns, as many as runs come to, and grown as in runs: on Permuted
MNIST a full one, on CIFAR-100 and 5-Datasets short ones (``--method trgp --train-per-task 1500 --epochs 4``). Each task
owns nearly all columns that there were when it ended, as in all of these runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber import CUBER, GPM, TRGP, FineTune, MultiHead, Stream, Task
from cuber.core.learner import Method
from cuber.core.pooled import PooledMethod
from cuber.networks import MLP, AlexNet5, ReducedResNet18
from cuber.streams.splits import TensorSplit
from cuber.subspace import LayerMemory, Pool, PrunedGradient
from cuber.training.config import TrainingConfig
from cuber.training.optimizers import OptimizerFactory
from cuber.training.task_runs import TaskRun
from cuber.training.trainer import Trainer

LEARNING_RATE = 1e-3
OWNED = 0.95
"""Of the columns that were there."""

METHODS: dict[str, tuple[type[Method], dict[str, float | str]]] = {
    "FineTune": (FineTune, {}),
    "GPM": (GPM, {}),
    "TRGP": (TRGP, {"eps1": 0.0}),
    "CUBER": (CUBER, {"eps1": 0.0, "eps2": -1.0, "lam": 1.0, "penalty": "norm"}),
}
"""With thresholds that put the two nearest old tasks into regime 2, or 3, in every layer."""


def plain(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(parameters, lr)


def learn_task(learner: Method, loader: list[tuple[Tensor, Tensor]]) -> None:
    """Learn a task in one pass of plain SGD."""
    learner.begin_task(loader, functional.cross_entropy)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.01))
    for inputs, labels in loader:
        optimizer.zero_grad()
        functional.cross_entropy(learner.model(inputs), labels).backward()
        optimizer.step()
    learner.end_epoch()
    learner.end_task(loader)


@dataclass(frozen=True)
class Subject:
    """A network, its batches, and how full its pools are after all tasks but one."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    pools: Sequence[int]
    """Columns layer by layer."""
    grown: Sequence[float]
    """The share of them that there was after each of the old tasks."""
    steps: int
    """In one turn of a measurement."""

    @property
    def old_tasks(self) -> int:
        return len(self.grown)

    def data(self, samples: int | None = None) -> tuple[Tensor, Tensor]:
        count = samples or self.steps * self.batch
        return torch.randn(count, *self.shape), torch.randint(10, (count,))

    def bare(self, make: OptimizerFactory = plain) -> Callable[[], None]:
        """The loop that anybody would write without us."""
        model, (x, y) = self.build(), self.data()
        optimizer = make(list(model.parameters()), LEARNING_RATE)

        def work() -> None:
            for chosen in torch.randperm(len(y)).split(self.batch):
                optimizer.zero_grad()
                functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimizer.step()

        return work

    def learner(self, method: str) -> Method:
        kind, settings = METHODS[method]
        learner = kind(self.build(), **settings)  # type: ignore[arg-type]
        learner.tasks = self.old_tasks
        learner.statistics = [learner.normalization.statistics()] * self.old_tasks
        if isinstance(learner, PooledMethod):
            self._remember(learner)
        return learner

    def ours(self, method: str, make: OptimizerFactory = plain) -> Callable[[], None]:
        """The steps of our trainer, in the middle of the last task."""
        return self.steps_of(self.learner(method), make)

    def steps_of(self, learner: Method, make: OptimizerFactory) -> Callable[[], None]:
        trainer = self.trainer(learner, make)
        trainer.learner.begin_task(trainer.samples, functional.cross_entropy, steps=len(trainer.loader))
        trainer.prepare()

        def work() -> None:
            trainer.step = 0
            trainer.train_steps()

        return work

    def trainer(self, learner: Method, make: OptimizerFactory) -> Trainer:
        train = TensorSplit(*self.data())
        stream = Stream("last", [Task("last", train, train, classes=10)])
        training = TrainingConfig(epochs=1, lr=LEARNING_RATE, batch_size=self.batch)
        trainer = Trainer(learner, stream, training, 0, make, functional.cross_entropy)
        trainer.set_up(TaskRun(self.old_tasks, "last", train, {}, validated=False))
        return trainer

    def _remember(self, learner: PooledMethod) -> None:
        for size, (name, layer) in zip(self.pools, learner.layers.items(), strict=True):
            pool = _pool(layer.dimension, [round(size * share) for share in self.grown])
            learner.memory[name] = memory = LayerMemory.empty(layer.dimension, self.old_tasks, like=layer.parameter)
            memory.basis, memory.owners = pool.basis, pool.owners
            if isinstance(learner, CUBER):
                gradients = [torch.randn(layer.outputs, layer.dimension) for _ in range(self.old_tasks)]
                memory.gradients = [PrunedGradient.of(gradient, learner.keep) for gradient in gradients]


def _pool(dimension: int, sizes: list[int]) -> Pool:
    basis = torch.linalg.qr(torch.randn(dimension, sizes[-1])).Q.contiguous()
    owners = torch.zeros(len(sizes), sizes[-1], dtype=torch.bool)
    for task, (known, grown) in enumerate(pairwise([0, *sizes])):
        owners[task, known:grown] = True
        owners[task, :known] = torch.rand(known) < OWNED
    return Pool(basis, owners)


def perceptron() -> nn.Module:
    return MLP(784, 100, 100, 10)


def alexnet() -> nn.Module:
    return _with_heads(AlexNet5(), AlexNet5.features, 10)


def resnet(side: int = 32) -> nn.Module:
    backbone = ReducedResNet18(side=side, first_stride=1 if side == 32 else 2)
    return _with_heads(backbone, backbone.features, 20)


def _with_heads(backbone: nn.Module, features: int, tasks: int) -> nn.Module:
    model = MultiHead(backbone, features, [10] * tasks, bias=False)
    model.select_task(tasks - 1)
    return model


MLP_SUBJECT = Subject(
    "MLP, batch 10",
    perceptron,
    (784,),
    10,
    pools=(612, 100, 98),
    grown=(0.11, 0.25, 0.39, 0.52, 0.63, 0.74, 0.84, 0.92, 1.0),
    steps=200,
)
ALEXNET_SUBJECT = Subject(
    "AlexNet-5, batch 64",
    alexnet,
    (3, 32, 32),
    64,
    pools=(11, 204, 379, 785, 1063),
    grown=(0.09, 0.20, 0.31, 0.43, 0.54, 0.66, 0.77, 0.89, 1.0),
    steps=1,
)
RESNET_SUBJECT = Subject(
    "ResNet-18, batch 64",
    resnet,
    (3, 32, 32),
    64,
    pools=(8, 34, 63, 57, 71, 54, 178, 15, 184, 177, 149, 374, 32, 373, 416, 268, 462, 55, 789, 901),
    grown=(0.18, 0.68, 0.84, 1.0),
    steps=1,
)
SUBJECTS = [MLP_SUBJECT, ALEXNET_SUBJECT, RESNET_SUBJECT]
